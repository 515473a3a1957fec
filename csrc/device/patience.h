// How long the host waits for a device before it calls it hung.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

namespace tefl::device {

/// Seconds after which every wait gives up; 0, as it is at first, for never.
double patience() noexcept;
void set_patience(double seconds) noexcept;

/// Throws torch.AcceleratorError's C++ type: `what` timed out, and `where` the device is.
[[noreturn]] void throw_timed_out(const char* what, double seconds, const std::string& where);

/// Asks `done()` again and again, ever more rarely, for at most `seconds`. Whether it became true.
template <typename Done>
bool poll(const Done& done, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  auto pause = std::chrono::microseconds(0);
  while (!done()) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2 + std::chrono::microseconds(5), std::chrono::microseconds(2000));
  }
  return true;
}

}  // namespace tefl::device
