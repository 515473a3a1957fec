// How running out of memory is told.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace tefl::device {

/// Bytes in the largest unit of which there is at least one: "1.50 GiB".
std::string human_bytes(uint64_t bytes);

/// Throws torch.OutOfMemoryError for `asked` bytes that device `index` could not give, of which this process
/// has `reserved` bytes and its tensors `allocated`. `reason` is the provider's.
[[noreturn]] void throw_out_of_memory(c10::DeviceIndex index, uint64_t asked, uint64_t allocated,
                                      uint64_t reserved, const std::string& reason);

}  // namespace tefl::device
