// When the device's resources may still be given back.
#pragma once

#include <mutex>

namespace tefl::device {

/// False in a child forked after the runtime had started, and once the interpreter has begun to end: memory,
/// streams and events are left alone then, since the vendor's runtime may be gone.
bool may_release() noexcept;

/// Called once, as the interpreter begins to end.
void process_is_ending() noexcept;

/// Held by a thread of ours while it lets go of what may hold Python objects, after it has asked
/// may_release(): such a thread must not want the interpreter's lock when there is none any more.
std::recursive_mutex& release_gate();

}  // namespace tefl::device
