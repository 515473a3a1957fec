#include "device/lifetime.h"

#include <atomic>

#include "device/provider.h"

namespace tefl::device {
namespace {

std::atomic<bool> ending{false};

}  // namespace

bool may_release() noexcept { return !ending.load(std::memory_order_relaxed) && !in_bad_fork(); }

void process_is_ending() noexcept { ending = true; }

}  // namespace tefl::device
