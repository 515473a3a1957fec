#include "device/out_of_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <cstdio>

#include "device/current_device.h"
#include "device/provider.h"

namespace tefl::device {

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double amount = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; amount >= 1024; amount /= 1024) ++unit;
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f %s", amount, kUnits[unit]);
  return text;
}

void throw_out_of_memory(c10::DeviceIndex index, uint64_t asked, uint64_t allocated, uint64_t reserved,
                         const std::string& reason) {
  uint64_t free_bytes = 0, total_bytes = 0;
  check(runtime().memory_info(index, &free_bytes, &total_bytes), "memory_info");
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(asked), allocated, reserved, device_at(index));
  TORCH_CHECK_WITH(OutOfMemoryError, false, device_name(), " out of memory. Tried to allocate ",
                   human_bytes(asked), " on ", device_at(index), ". Of its ", human_bytes(total_bytes), ", ",
                   human_bytes(free_bytes), " are free; this process has reserved ", human_bytes(reserved),
                   ", of which its tensors hold ", human_bytes(allocated), ". (", reason, ")");
}

}  // namespace tefl::device
