#include "device/lifetime.h"

#include <atomic>

#include "device/provider.h"

namespace tefl::device {
namespace {

std::atomic<bool> ending{false};

}  // namespace

bool may_release() noexcept { return !ending.load(std::memory_order_relaxed) && !in_bad_fork(); }

std::recursive_mutex& release_gate() {
  static auto* gate = new std::recursive_mutex;  // never destroyed: threads may outlive main
  return *gate;
}

void process_is_ending() noexcept {
  const std::lock_guard<std::recursive_mutex> nobody_releases(release_gate());
  ending = true;
}

}  // namespace tefl::device
