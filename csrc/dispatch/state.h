// What the native router reads of dispatch's state. Python writes it, under its own lock; readers take none.
#pragma once

#include <atomic>
#include <cstdint>

namespace tefl::dispatch {

struct State {
  // Counts changes of registries, global policy, active provider. What an older count decided is stale.
  std::atomic<int64_t> epoch{0};
  // How many policy contexts are open anywhere.
  std::atomic<int64_t> open_contexts{0};
  // Whether somebody counts the calls.
  std::atomic<bool> recording{false};
};

inline State& state() {
  static State instance;
  return instance;
}

}  // namespace tefl::dispatch
