#include "device/shared.h"

#include <ATen/Context.h>

#include "device/provider.h"

namespace tefl::device {
namespace {

const c10::impl::DeviceGuardImplInterface* guard = nullptr;

}  // namespace

const c10::impl::DeviceGuardImplInterface* shared_guard() noexcept { return guard; }

void share_guard(c10::DeviceType type) { guard = c10::impl::getDeviceGuardImpl(type); }

void start_shared_runtime() {
  if (guard != nullptr) at::globalContext().lazyInitDevice(guard->type());
}

const c10::impl::DeviceGuardImplInterface* started_shared_guard() noexcept {
  return guard != nullptr && is_initialized() ? guard : nullptr;
}

}  // namespace tefl::device
