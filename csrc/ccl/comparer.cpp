#include "ccl/comparer.h"

#include <algorithm>

namespace tefl::ccl {

void Comparer::add(const Call& call) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ending_) return;
    entries_.push_back({call, Clock::now() + ledger_->timeout()});
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

bool Comparer::behind() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !entries_.empty();
}

void Comparer::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// After the time-out the work itself has failed, or nobody cares any more.
bool Comparer::settle(const Entry& entry) {
  return ledger_->agrees(entry.call) || Clock::now() > entry.deadline;
}

void Comparer::run() {
  auto nap = kFirstLook;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !entries_.empty(); });
    if (ending_) return;
    const auto first = entries_.begin();  // rank 0 announces in order; others only append
    lock.unlock();
    bool over = false;
    try {
      over = settle(*first);
    } catch (...) {
      differs_(reason_of(std::current_exception()));
      return;
    }
    lock.lock();
    if (over) {
      entries_.erase(first);
      nap = kFirstLook;
    } else {
      changed_.wait_for(lock, nap, [&] { return ending_; });
      nap = std::min(2 * nap, kLongestLook);
    }
  }
}

}  // namespace tefl::ccl
