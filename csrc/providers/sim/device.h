// The simulated devices: how many there are, and what each of them holds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "allocation.h"
#include "stream.h"

namespace tefl_sim {

/// One device: its memory, and the work of other devices' streams that touches it.
struct Device {
  std::mutex mutex;
  std::map<const char*, std::unique_ptr<Allocation>> allocations;  // by where they begin
  int kernels = 0;                                                 // how many run now: all is open to them
  uint64_t used = 0;
  std::vector<std::shared_ptr<Mark>> visits;  // copies from or to this device on another's stream
};

/// Device `index`. Throws Failure if the runtime has not started or there is no such device.
Device& device(int32_t index);
void check_device(int32_t index);

/// How many devices there are, 0 before the start.
int32_t running_devices() noexcept;

/// Bytes of each device.
uint64_t capacity();

/// Waits for all that is enqueued on the streams of device `index`.
void drain(int32_t index);

}  // namespace tefl_sim
