// The thread that sees to it that no work in streams of a vendor's collectives hangs.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "ccl/stream_work.h"

namespace tefl::ccl {

/// Watches work until it is done; aborts a communicator whose work takes too long, and fails all its work.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::milliseconds timeout);
  ~Watchdog() { end(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void watch(c10::intrusive_ptr<StreamWork> work, std::chrono::milliseconds timeout);
  /// Returns when all work is done or has failed, so after the longest time-out at the latest.
  void drain();

  /// Work that is still under way fails, and its communicators are aborted; nothing is watched any more.
  void end();

  /// What made the group fail: every later call fails with it. "" while it is sound.
  std::string failure() const;
  void fail(const std::string& reason);

 private:
  struct Entry;
  struct State;

  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<State> state_;  // with the thread: what it lets go of may be the last of us
  std::thread thread_;                  // started by the first work
};

}  // namespace tefl::ccl
