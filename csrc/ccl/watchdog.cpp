#include "ccl/watchdog.h"

#include <condition_variable>
#include <list>
#include <mutex>

#include "ccl/let_go.h"
#include "device/lifetime.h"

namespace tefl::ccl {
namespace {

constexpr std::chrono::milliseconds kLook{2};  // how often streams are asked: they tell nobody by themselves
constexpr char kDestroyed[] = "the process group was destroyed before the work was done";

}  // namespace

struct Watchdog::Entry {
  using Clock = std::chrono::steady_clock;

  c10::intrusive_ptr<StreamWork> work;
  Clock::time_point deadline;
  std::chrono::milliseconds allowed;
  std::string error{};  // what became of it, once it is over; "" if all is well

  bool is_over();
  bool has_failed();
  void give_up(const std::string& reason);
  void end();
};

struct Watchdog::State {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::list<Entry> entries;
  std::string failure;
  bool settling = false;  // the thread has taken entries out and not ended them all
  bool ending = false;

  std::list<Entry> take_over();
  void run();
};

// ------------------------------------------------------------------------------------- of a single work --

void Watchdog::Entry::give_up(const std::string& reason) {
  error = reason;
  work->communicator().abort(work->call().describe() + ": " + reason);
}

bool Watchdog::Entry::has_failed() {
  error = work->communicator().error();
  return !error.empty();
}

bool Watchdog::Entry::is_over() {
  try {
    if (has_failed() || work->reached()) return true;
    if (Clock::now() <= deadline) return false;
    give_up("not done within its time-out of " + std::to_string(allowed.count()) + " ms");
  } catch (...) {  // a device that has failed answers every question so
    give_up(reason_of(std::current_exception()));
  }
  return true;
}

// Without the lock: what ends a work tells others, asks the store, and frees memory.
void Watchdog::Entry::end() {
  work->end(error.empty() ? nullptr : std::make_exception_ptr(std::runtime_error(error)));
  work->release();
}

// ------------------------------------------------------------------------------------------- the thread --

std::list<Watchdog::Entry> Watchdog::State::take_over() {
  std::list<Entry> over;
  for (auto entry = entries.begin(); entry != entries.end();) {
    const auto next = std::next(entry);
    if (entry->is_over()) {
      if (failure.empty() && !entry->error.empty())
        failure = entry->work->call().describe() + ": " + entry->error;
      over.splice(over.end(), entries, entry);
    }
    entry = next;
  }
  return over;
}

void Watchdog::State::run() {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return ending || !entries.empty(); });
    if (ending) return;
    auto over = take_over();
    settling = true;
    lock.unlock();
    for (auto& entry : over) entry.end();
    let_go(over);
    lock.lock();
    settling = false;
    if (entries.empty()) {
      changed.notify_all();
    } else {
      changed.wait_for(lock, kLook, [&] { return ending; });
    }
  }
}

// ----------------------------------------------------------------------------------------- the watchdog --

Watchdog::Watchdog(std::chrono::milliseconds timeout)
    : timeout_(timeout), state_(std::make_shared<State>()) {}

void Watchdog::end() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->ending = true;
  }
  state_->changed.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
  for (auto& entry : state_->entries) {
    if (!device::may_release()) {
      entry.error = kDestroyed;
    } else if (!entry.is_over()) {
      entry.give_up(kDestroyed);
    }
    entry.end();
  }
  let_go(state_->entries);
}

void Watchdog::watch(c10::intrusive_ptr<StreamWork> work, std::chrono::milliseconds timeout) {
  const auto allowed = timeout > kNoTimeout ? timeout : timeout_;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (!thread_.joinable()) thread_ = std::thread([state = state_] { state->run(); });
    state_->entries.push_back({std::move(work), Entry::Clock::now() + allowed, allowed});
  }
  state_->changed.notify_all();
}

void Watchdog::drain() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->entries.empty() && !state_->settling; });
}

std::string Watchdog::failure() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->failure;
}

void Watchdog::fail(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->failure.empty()) state_->failure = reason;
}

}  // namespace tefl::ccl
