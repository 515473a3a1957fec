#include "ccl/start_queue.h"

#include <stdexcept>

#include "ccl/let_go.h"
#include "device/current_device.h"
#include "device/events.h"

namespace tefl::ccl {

void StartQueue::end() {
  // The last reference to a group may be dropped with a job, so on the queue's own thread.
  const bool on_its_thread = thread_.get_id() == std::this_thread::get_id();
  if (on_its_thread) abandon();
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->ending = true;
  }
  state_->changed.notify_all();
  if (!thread_.joinable()) return;
  if (on_its_thread) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

// Jobs work on the group, which is going.
void StartQueue::abandon() {
  std::deque<Entry> left;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    left.swap(state_->waiting);
  }
  for (const auto& entry : left) {
    entry.failed(
        std::make_exception_ptr(std::runtime_error("the process group was destroyed before the call began")));
    device::destroy_event(entry.event, entry.after.device_index());
  }
}

void StartQueue::submit(c10::Stream after, Job job, Failed failed) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  void* event = nullptr;
  device::record_event(&event, after, /*timing=*/false);
  state_->waiting.push_back({after, event, std::move(job), std::move(failed)});
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { run(*state); });
  lock.unlock();
  state_->changed.notify_all();
}

void StartQueue::start(Entry entry) {
  try {
    device::exchange_device(entry.after.device_index());
    device::synchronize_event(entry.event);
    entry.job();
  } catch (...) {
    entry.failed(std::current_exception());
  }
  device::destroy_event(entry.event, entry.after.device_index());
  let_go(entry.job);  // before the next one
  let_go(entry.failed);
}

void StartQueue::run(State& state) {
  std::unique_lock<std::mutex> lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return state.ending || !state.waiting.empty(); });
    if (state.waiting.empty()) return;
    Entry entry = std::move(state.waiting.front());
    state.waiting.pop_front();
    state.busy = true;
    lock.unlock();
    start(std::move(entry));
    lock.lock();
    state.busy = false;
  }
}

}  // namespace tefl::ccl
