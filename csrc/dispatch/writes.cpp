#include "dispatch/writes.h"

#include <ATen/core/Tensor.h>

namespace tefl::dispatch {
namespace {

uint32_t version(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : 0;  // inference tensors have none
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace

ReadOnly::ReadOnly(const c10::FunctionSchema& schema) : arity_(schema.arguments().size()) {
  for (size_t i = 0; i < arity_; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.type()->str().find("Tensor") == std::string::npos || is_written(argument)) continue;
    positions_.push_back(i);
    names_.push_back(argument.name());
  }
}

template <class Visit>
void ReadOnly::each_tensor(const torch::jit::Stack& stack, Visit visit) const {
  const c10::IValue* const first = stack.data() + (stack.size() - arity_);
  for (size_t i = 0; i < positions_.size(); ++i) {
    const c10::IValue& value = first[positions_[i]];
    if (value.isTensor()) {
      visit(i, value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) visit(i, tensor);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        if (tensor) visit(i, *tensor);
      }
    }
  }
}

Versions ReadOnly::versions(const torch::jit::Stack& stack) const {
  Versions found;
  each_tensor(stack, [&](size_t, const at::Tensor& tensor) { found.push_back(version(tensor)); });
  return found;
}

std::optional<std::string> ReadOnly::written(const torch::jit::Stack& stack, const Versions& since) const {
  std::optional<std::string> name;
  size_t next = 0;
  each_tensor(stack, [&](size_t i, const at::Tensor& tensor) {
    if (version(tensor) != since[next++] && !name) name = names_[i];
  });
  return name;
}

}  // namespace tefl::dispatch
