// A device whose alias is a GPU shares that GPU's current device, streams, events and memory with PyTorch's
// own name for it, so that work under both names is in one order. Here is PyTorch's side of it, for either
// name.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/alias_target.h"
#include "device/current_device.h"

namespace tefl::device {

/// The guard of the GPU; null where the alias is the host and everything is the provider's.
const c10::impl::DeviceGuardImplInterface* shared_guard() noexcept;

/// Sets it. Called once, by claim().
void share_guard(c10::DeviceType type);

/// Starts PyTorch's own side of the GPU, once; nothing where the alias is the host. Needs no Python.
void start_shared_runtime();

/// The guard of the GPU once the device's runtime has started; null before that, for asking it would start
/// the GPU's and spoil a later fork.
const c10::impl::DeviceGuardImplInterface* started_shared_guard() noexcept;

inline c10::Device shared_device(c10::DeviceIndex index) { return alias_target().device(index); }

/// A stream under the other name.
inline c10::Stream shared_stream(c10::Stream ours) {
  return c10::Stream(c10::Stream::UNSAFE, shared_device(ours.device_index()), ours.id());
}
inline c10::Stream our_stream(c10::Stream shared) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(shared.device_index()), shared.id());
}

}  // namespace tefl::device
