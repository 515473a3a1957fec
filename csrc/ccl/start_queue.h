// Starts jobs in the order they came, each after the stream it belongs behind, without blocking the caller.
#pragma once

#include <c10/core/Stream.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "device/streams.h"

namespace tefl::ccl {

class StartQueue {
 public:
  ~StartQueue() { end(); }

  /// Waits for the jobs that were submitted; there may be no more. Not under the interpreter's lock, which
  /// jobs may want.
  void end();

  using Job = std::function<void()>;
  using Failed = std::function<void(std::exception_ptr)>;

  /// Runs `job` if all work now in `after` is done already and no earlier job is waiting; whether it did.
  /// What `job` throws is the caller's.
  template <class Now>
  bool run_now(c10::Stream after, const Now& job) {
    const std::lock_guard<std::mutex> lock(state_->mutex);  // while it runs, too: in order
    if (state_->busy || !state_->waiting.empty() || !device::query_stream(after)) return false;
    job();
    return true;
  }

  /// Runs `job` on a thread of the queue, where it may block, once all work now in `after` is done and all
  /// earlier jobs have run. What it throws goes to `failed`.
  void submit(c10::Stream after, Job job, Failed failed);

 private:
  struct Entry {
    c10::Stream after;
    void* event;
    Job job;
    Failed failed;
  };
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Entry> waiting;
    bool busy = false;  // the thread has taken a job out and not finished it
    bool ending = false;
  };
  static void run(State& state);
  static void start(Entry entry);
  void abandon();

  const std::shared_ptr<State> state_ = std::make_shared<State>();  // the thread keeps it, too
  std::thread thread_;  // started by the first job that has to wait
};

}  // namespace tefl::ccl
