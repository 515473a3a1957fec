#include "launch/recipe.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_ops.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorOptions.h>

namespace tefl::launch {
namespace {

uint64_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

Recipe::Recipe(c10::Device device, size_t arity, std::vector<Buffer> buffers, std::vector<Step> steps,
               std::vector<size_t> results)
    : device_(device),
      keys_(c10::computeDispatchKey(std::nullopt, at::kStrided, device)),
      arity_(arity),
      buffers_(std::move(buffers)),
      steps_(std::move(steps)),
      results_(std::move(results)) {}

void Recipe::run(torch::jit::Stack* stack) const {
  const c10::IValue* const arguments = stack->data() + (stack->size() - arity_);
  Tensors buffers;
  for (const Buffer& buffer : buffers_) buffers.push_back(make(buffer, arguments));
  if (!steps_.empty()) launch(arguments, buffers);
  torch::jit::drop(*stack, arity_);
  for (const size_t result : results_) stack->push_back(buffers[result]);
}

at::Tensor Recipe::make(const Buffer& buffer, const c10::IValue* arguments) const {
  // To the device's own kernel at once: nothing between it and the dispatcher's top concerns new memory.
  at::Tensor tensor =
      at::_ops::empty_memory_format::redispatch(keys_, c10::fromIntArrayRefSlow(buffer.sizes), buffer.dtype,
                                                at::kStrided, device_, std::nullopt, std::nullopt);
  if (C10_LIKELY(!buffer.source && !buffer.zero)) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below;
  return buffer.zero ? tensor.zero_() : tensor.copy_(arguments[*buffer.source].toTensor());
}

void Recipe::launch(const c10::IValue* arguments, const Tensors& buffers) const {
  const Launcher& launcher = launcher_for(device_);
  const c10::Device native = launcher.native(device_);
  const c10::DeviceGuard guard(native);
  void* const stream = current_stream(native);
  Words words;
  for (const Step& step : steps_) {
    words.clear();
    for (const Operand& operand : step.operands) {
      switch (operand.kind) {
        case Operand::kInput:
          words.push_back(address(arguments[operand.word].toTensor().const_data_ptr()));
          break;
        case Operand::kBuffer:
          words.push_back(address(buffers[operand.word].mutable_data_ptr()));
          break;
        case Operand::kValue:
          words.push_back(operand.word);
          break;
      }
    }
    step.kernel->enqueue(launcher, native, stream, step.config, words);
  }
}

}  // namespace tefl::launch
