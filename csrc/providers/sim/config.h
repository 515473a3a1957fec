// What the simulator is told through its environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tefl_sim {

constexpr int32_t kMaxDevices = 64;

/// TEFL_SIM_DEVICES: how many devices there are, 1 to kMaxDevices, 2 unless set. Throws Failure on anything
/// else.
int32_t configured_devices();

/// TEFL_SIM_CAPACITY: bytes of memory of each device, a whole number with an optional K, M or G (powers of
/// 1024); the machine's memory unless set. Throws Failure on anything else.
uint64_t configured_capacity();

/// How device memory is kept from the host.
enum class Guarding {
  kNone,     // not at all
  kChecked,  // TEFL_SIM_CHECKED=1: but for sections that host_access_begin opens
  kOpaque,   // TEFL_SIM_OPAQUE=1: always, and the alias is TEFL_ALIAS_NONE
};

/// Anything but 0, 1 and nothing counts as 0 here, and is refused by check_guarding().
Guarding configured_guarding();

/// Throws Failure where one of the two variables is neither 0 nor 1.
void check_guarding();

/// The whole of `text` as a decimal number, or nothing.
std::optional<uint64_t> whole_number(std::string_view text);

/// Throws Failure for a variable's value.
[[noreturn]] void bad_value(const char* variable, const char* text, const char* wanted);

}  // namespace tefl_sim
