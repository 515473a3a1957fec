// What the simulator is told through its environment.
#pragma once

#include <cstdint>

namespace tefl_sim {

constexpr int32_t kMaxDevices = 64;

/// TEFL_SIM_DEVICES: how many devices there are, 1 to kMaxDevices, 2 unless set. Throws Failure on anything
/// else.
int32_t configured_devices();

/// TEFL_SIM_CAPACITY: bytes of memory of each device, a whole number with an optional K, M or G (powers of
/// 1024); the machine's memory unless set. Throws Failure on anything else.
uint64_t configured_capacity();

}  // namespace tefl_sim
