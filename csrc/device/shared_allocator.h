// The allocator of a device that shares a GPU's memory with PyTorch's own name for it.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace tefl::device {

/// PyTorch's allocator of the GPU, whose blocks and statistics are one under both names.
c10::DeviceAllocator& shared_allocator();

}  // namespace tefl::device
