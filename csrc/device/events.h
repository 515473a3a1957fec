// Events: marks in a stream that other streams, or the host, wait for. PyTorch holds them as void*.
#pragma once

#include <c10/core/Stream.h>

namespace tefl::device {

/// Marks the end of the work now in `stream`. Creates `*event` first where it is null; `timing` counts then.
void record_event(void** event, c10::Stream stream, bool timing);

/// Makes later work in `stream` wait for `event`'s last mark. A null event counts as done, here and below.
void block_stream(void* event, c10::Stream stream);

bool query_event(void* event);
void synchronize_event(void* event);

/// Milliseconds between two marks that are done, of events created with timing.
double elapsed_ms(void* start, void* end, c10::DeviceIndex index);

void destroy_event(void* event, c10::DeviceIndex index) noexcept;

/// Makes `later` wait for all work now in `earlier`, of the same device or another.
void order_streams(c10::Stream earlier, c10::Stream later);

}  // namespace tefl::device
