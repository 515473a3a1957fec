// Enqueuing a copy of bytes: every one goes through here, so that the stream's log knows it.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>

namespace tefl::device {

/// As tefl_runtime.memcpy_async. `name` is the operator that needs the copy, a string that lives as long as
/// the process, or null.
void enqueue_copy(void* destination, int32_t destination_device, const void* source, int32_t source_device,
                  size_t bytes, c10::Stream stream, const char* name = nullptr);

}  // namespace tefl::device
