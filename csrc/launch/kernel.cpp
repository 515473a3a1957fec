#include "launch/kernel.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <sstream>

#include "device/current_device.h"
#include "device/stream_log.h"
#include "device/streams.h"

namespace tefl::launch {
namespace {

std::string shape(const Size3& size) {
  std::ostringstream text;
  text << "(" << size.x << ", " << size.y << ", " << size.z << ")";
  return text.str();
}

}  // namespace

void* current_stream(c10::Device native) {
  const c10::impl::VirtualGuardImpl guard(native.type());
  return guard.getStreamNativeHandle(guard.getStream(native));
}

Function Binary::function(const Launcher& launcher, c10::Device device, const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Module& module = modules_[{device.type(), device.index()}];
  if (module == nullptr) module = launcher.load(device, image_.data(), image_.size());
  return launcher.function(module, name);
}

Kernel::Kernel(std::shared_ptr<Binary> binary, std::string name, std::string signature)
    : binary_(std::move(binary)),
      name_(std::move(name)),
      signature_(std::move(signature)),
      lasting_name_(device::interned(name_)) {
  const size_t bad = signature_.find_first_not_of("pilfd0");
  TORCH_CHECK(bad == std::string::npos, "kernel '", name_, "': the signature '", signature_, "' has '",
              signature_[bad],
              "'; wanted are p (pointer), i (int32), l (int64), f (float32), d (float64), 0 (null)");
}

Function Kernel::ready(const Launcher& launcher, c10::Device native, uint32_t shared_bytes) {
  const size_t index = static_cast<size_t>(native.index());
  TORCH_CHECK(index < kDevices, "tefl launches kernels on the first ", kDevices, " devices only");
  Loaded& loaded = loaded_[(native.is_cuda() ? 0 : kDevices) + index];
  Function function = loaded.function.load(std::memory_order_acquire);
  if (C10_UNLIKELY(function == nullptr)) {
    function = binary_->function(launcher, native, name_);
    loaded.function.store(function, std::memory_order_release);
  }
  if (C10_UNLIKELY(shared_bytes > loaded.shared_bytes.load(std::memory_order_acquire))) {
    launcher.allow_shared(function, shared_bytes);
    loaded.shared_bytes.store(shared_bytes, std::memory_order_release);
  }
  return function;
}

// An error that the launch leads to later names it.
void Kernel::note(c10::Device native, void* stream) const {
  if (native.type() != device::kType) return;  // the driver's own errors are CUDA's affair
  device::note_enqueued(device::current_stream(native.index()), static_cast<tefl_stream>(stream), "kernel",
                        lasting_name_, 0);
}

void Kernel::launch(c10::Device device, const Config& config, const Words& words) {
  const Launcher& launcher = launcher_for(device);
  const c10::Device native = launcher.native(device);
  const c10::DeviceGuard guard(native);
  enqueue(launcher, native, current_stream(native), config, words);
}

void Kernel::enqueue(const Launcher& launcher, c10::Device native, void* stream, const Config& config,
                     const Words& words) {
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return;
  c10::SmallVector<void*, 24> parameters;
  for (const uint64_t& word : words) parameters.push_back(const_cast<uint64_t*>(&word));
  try {
    const Function function = ready(launcher, native, config.shared_bytes);
    note(native, stream);
    launcher.launch(native, function, config, stream, parameters.data(),
                    static_cast<uint32_t>(parameters.size()));
  } catch (c10::Error& error) {
    std::ostringstream context;
    context << "while launching kernel '" << name_ << "' on " << native << ": grid " << shape(config.grid)
            << ", block " << shape(config.block) << ", " << config.shared_bytes << " bytes of shared memory";
    error.add_context(context.str());
    throw;
  }
}

}  // namespace tefl::launch
