// Pinned host memory: what copies to and from the device can be asynchronous with.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace tefl::device {

/// Allocates by the provider's host_malloc, or ordinary host memory where the provider has none. What is
/// freed is kept for the next allocation of its size class, a power of two. Where the alias is a GPU it is
/// PyTorch's pinned memory of that GPU.
at::HostAllocator& pinned_allocator();

/// Makes it PyTorch's allocator of the device's pinned memory (torch.accelerator.empty_host_cache).
void install_pinned_allocator();

/// Whether `pointer` lies in memory of that allocator.
bool is_pinned(const void* pointer);

/// The same; if so, the memory is not used again before `stream` has done what is in it when it is freed.
bool use_pinned(const void* pointer, c10::Stream stream);

}  // namespace tefl::device
