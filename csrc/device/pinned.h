// Pinned host memory: what copies to and from the device can be asynchronous with.
#pragma once

#include <c10/core/Allocator.h>

namespace tefl::device {

/// Allocates by the provider's host_malloc, or ordinary host memory where the provider has none.
c10::Allocator& pinned_allocator();

/// Whether `pointer` lies in memory of that allocator.
bool is_pinned(const void* pointer);

}  // namespace tefl::device
