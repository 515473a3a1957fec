// When the device's resources may still be given back.
#pragma once

namespace tefl::device {

/// False in a child forked after the runtime had started, and once the interpreter has begun to end: memory,
/// streams and events are left alone then, since the vendor's runtime may be gone.
bool may_release() noexcept;

/// Called once, as the interpreter begins to end, without its lock. Returns when nobody releases any more.
void process_is_ending() noexcept;

/// Lives while a thread of ours lets go of what may hold Python objects: the interpreter's end waits for it,
/// for such a thread must not want the interpreter's lock when there is none any more.
class Releasing {
 public:
  Releasing() noexcept;
  ~Releasing();
  Releasing(const Releasing&) = delete;
  Releasing& operator=(const Releasing&) = delete;
};

}  // namespace tefl::device
