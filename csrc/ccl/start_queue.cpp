#include "ccl/start_queue.h"

#include "ccl/let_go.h"
#include "device/current_device.h"
#include "device/events.h"
#include "device/streams.h"

namespace tefl::ccl {

StartQueue::~StartQueue() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (!thread_.joinable()) return;
  // The last reference to a work, and with it to us, may be dropped by a job.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void StartQueue::submit(c10::Stream after, bool may_run_here, Job job, Failed failed) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (may_run_here && waiting_.empty() && !busy_ && device::query_stream(after)) {
    return job(/*queued=*/false);  // under the lock: in order
  }
  void* event = nullptr;
  device::record_event(&event, after, /*timing=*/false);
  waiting_.push_back({after, event, std::move(job), std::move(failed)});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  lock.unlock();
  changed_.notify_all();
}

void StartQueue::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Entry entry = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    try {
      device::exchange_device(entry.after.device_index());
      device::synchronize_event(entry.event);
      entry.job(/*queued=*/true);
    } catch (...) {
      entry.failed(std::current_exception());
    }
    device::destroy_event(entry.event, entry.after.device_index());
    let_go(entry.job);  // before the next one
    let_go(entry.failed);
    lock.lock();
    busy_ = false;
  }
}

}  // namespace tefl::ccl
