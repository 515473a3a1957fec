// The alias device: where PyTorch's operators compute on the device's memory.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

#include "tefl_provider.h"

namespace tefl::device {

/// The alias device's type, and the dispatch keys that go with it.
struct AliasTarget {
  c10::DeviceType type;
  c10::DispatchKey key;
  c10::DispatchKeySet keys;
  c10::BackendComponent backend;  // the part of `key` that says which device it is
  c10::DispatchKeySet autocast;   // its tensors' autocast keys
  bool copies;  // what operators run on are copies in host memory: the device's can be used by nobody else

  /// The alias device of device `index`: the host, or the GPU of the same number.
  c10::Device device(c10::DeviceIndex index) const {
    return type == c10::kCPU ? c10::Device(type) : c10::Device(type, index);
  }
};

/// What the claimed provider's table says. Only after set_alias_target().
const AliasTarget& alias_target() noexcept;
void set_alias_target(tefl_alias alias);

}  // namespace tefl::device
