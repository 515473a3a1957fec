#include "device/shared.h"

namespace tefl::device {
namespace {

const c10::impl::DeviceGuardImplInterface* guard = nullptr;

}  // namespace

const c10::impl::DeviceGuardImplInterface* shared_guard() noexcept { return guard; }

void share_guard(c10::DeviceType type) { guard = c10::impl::getDeviceGuardImpl(type); }

}  // namespace tefl::device
