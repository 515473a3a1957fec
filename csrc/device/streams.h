// Streams: the provider's, behind PyTorch's stream ids, and the current one of each thread and device.
#pragma once

#include <c10/core/Stream.h>

#include "tefl_provider.h"

namespace tefl::device {

/// The stream that work on device `index` goes to in the calling thread. Starts no runtime.
c10::Stream current_stream(c10::DeviceIndex index) noexcept;

/// Makes `stream` current for its device in the calling thread; returns the one before.
c10::Stream exchange_stream(c10::Stream stream);

/// A stream of the device's pool: 32 for each priority, handed out in turn. `priority` is brought into the
/// provider's range; smaller is more urgent.
c10::Stream new_stream(c10::DeviceIndex index, int priority);
c10::Stream new_urgent_stream(c10::DeviceIndex index);

/// The provider's handle of `stream`. Starts the runtime.
tefl_stream native_stream(c10::Stream stream);

/// Whether all work now in `stream` is done, and waiting until it is. An error of the device that comes up is
/// torch.AcceleratorError's C++ type, and names the stream and what was enqueued there; so is a wait that
/// takes longer than patience() allows.
bool query_stream(c10::Stream stream);
void synchronize_stream(c10::Stream stream);

/// Waits until the work is done, and leaves its errors for whoever synchronises next. For clearing up. False
/// where the device does not answer, or not in time.
bool drain_stream(c10::Stream stream) noexcept;

/// Waits for all streams of device `index`, together at most `seconds` if that is not 0. Starts the runtime.
void synchronize_device(c10::DeviceIndex index, double seconds);

/// Waits until the work of the calling thread's current stream on device `index` is done.
void wait_for_current_stream(c10::DeviceIndex index);

}  // namespace tefl::device
