// How often operators ran on copies in host memory, and what that moved.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tefl::device {

struct FallbackCount {
  std::string op;  // "aten::add.Tensor"
  uint64_t calls = 0;
  uint64_t bytes_to_host = 0, bytes_to_device = 0;
};

void count_fallback(const std::string& op, uint64_t bytes_to_host, uint64_t bytes_to_device);

/// By the operator's name. Forgetting them does not make their notices come again.
std::vector<FallbackCount> fallback_counts();
void reset_fallback_counts();

/// `notice(op)` is called for each operator's first count in the process, on the thread that ran it.
void on_first_fallback(std::function<void(const std::string&)> notice);

}  // namespace tefl::device
