// Device memory: PyTorch's allocator over what is cached of each device.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <optional>
#include <vector>

#include "device/memory_snapshot.h"

namespace tefl::device {

/// The device's allocator, as PyTorch sees it. Allocates on the calling thread's current device.
c10::DeviceAllocator& allocator();

/// Makes it PyTorch's allocator of the device. Cannot be undone: storages keep the pointer.
void install_allocator();

/// `bytes` of memory on device `index` for work of the calling thread's current stream, null for 0. Starts
/// the runtime. Out of memory, after the cache has been given back, is torch.OutOfMemoryError: it says what
/// was asked and what there is.
void* allocate_block(size_t bytes, c10::DeviceIndex index);

/// The same for memory that the calling thread touches at once, not in stream order: work that another thread
/// enqueued on what was there before is waited for.
void* allocate_block_for_host(size_t bytes, c10::DeviceIndex index);

/// Gives back what allocate_block returned; null is allowed. The deleter of every storage of the device, told
/// by its address: memory with another deleter is not the device's.
void free_block(void* pointer) noexcept;

/// An allocation: where it begins, its size in bytes, its device.
struct Block {
  void* begin;
  size_t bytes;
  c10::DeviceIndex device;
};

/// The live allocation that `pointer` lies in.
std::optional<Block> find_block(const void* pointer);

/// What is held of device `index`, which is none that shares a GPU's memory.
std::vector<SegmentSnapshot> memory_snapshot(c10::DeviceIndex index);

/// Lets this process take no more than `bytes` of device `index` from now on.
void limit_memory(c10::DeviceIndex index, size_t bytes);

}  // namespace tefl::device
