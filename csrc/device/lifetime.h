// When the device's resources may still be given back.
#pragma once

namespace tefl::device {

/// False in a child forked after the runtime had started, and once the interpreter has begun to end: memory,
/// streams and events are left alone then, since the vendor's runtime may be gone.
bool may_release() noexcept;

/// Called once, as the interpreter begins to end.
void process_is_ending() noexcept;

}  // namespace tefl::device
