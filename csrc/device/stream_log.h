// What was enqueued where, last: so that an error of the device can name the work it may have come from.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <string>

#include "tefl_provider.h"

namespace tefl::device {

/// A copy of `text` that lives as long as the process; equal texts share one.
const char* interned(const std::string& text);

/// Notes work enqueued on `stream`: `what` and `name` (null for none) are kept as they are, so they live as
/// long as the process. Takes no lock and allocates only for a stream's first work. Threads that note work of
/// one stream at once may leave an entry of both.
void note_enqueued(c10::Stream stream, tefl_stream native, const char* what, const char* name,
                   uint64_t bytes);

/// How much was ever noted on a stream; and that so much of it is done.
uint64_t noted(tefl_stream native) noexcept;
void note_done(tefl_stream native, uint64_t count) noexcept;

/// "maca:0, default stream; it is at kernel 'gate'; enqueued there and not known to be done: copy from the
/// host (64 bytes), kernel 'gate'". What the stream is at is the provider's to say, where it can.
std::string describe_stream(c10::Stream stream, tefl_stream native);

/// The same for all streams of device `index`, or of all devices if it is negative, that have such work.
std::string describe_busy_streams(c10::DeviceIndex index);

}  // namespace tefl::device
