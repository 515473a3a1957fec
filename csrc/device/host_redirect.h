// Where an operator that runs on the host for the device finds its memory: on the device.
#pragma once

#include <c10/core/Device.h>

#include "device/host_access.h"

namespace tefl::device {

/// Wraps PyTorch's CPU allocator so that what a thread allocates inside a RedirectHostMemory scope is device
/// memory. False where another library has put an allocator of higher priority in place: results are then
/// adopted without being counted or placed. Cannot be undone: blocks in use know their deleter.
bool install_host_redirect();

/// While it lives, the calling thread's host allocations are made on device `index`. Nests.
class RedirectHostMemory {
 public:
  explicit RedirectHostMemory(c10::DeviceIndex index) noexcept;
  ~RedirectHostMemory();
  RedirectHostMemory(const RedirectHostMemory&) = delete;
  RedirectHostMemory& operator=(const RedirectHostMemory&) = delete;

 private:
  c10::DeviceIndex before_;
  HostAccessScope scope_;
};

}  // namespace tefl::device
