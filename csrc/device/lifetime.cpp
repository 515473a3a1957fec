#include "device/lifetime.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "device/provider.h"

namespace tefl::device {
namespace {

std::atomic<bool> ending{false};
std::atomic<int> releasing{0};

}  // namespace

bool may_release() noexcept { return !ending && !in_bad_fork(); }

// Counted before may_release() is asked, so that either the end sees the count or the thread sees the end.
Releasing::Releasing() noexcept { ++releasing; }
Releasing::~Releasing() { --releasing; }

void process_is_ending() noexcept {
  ending = true;
  while (releasing != 0 && !in_bad_fork()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace tefl::device
