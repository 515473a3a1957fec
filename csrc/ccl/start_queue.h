// Starts jobs in the order they came, each after the stream it belongs behind, without blocking the caller.
#pragma once

#include <c10/core/Stream.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace tefl::ccl {

class StartQueue {
 public:
  /// Waits for the jobs that were submitted.
  ~StartQueue();

  /// Told whether it has been in the queue, on whose thread it may block then.
  using Job = std::function<void(bool queued)>;
  using Failed = std::function<void(std::exception_ptr)>;

  /// Runs `job` once all work now in `after` is done: here and now where that is so already, no earlier job
  /// is waiting and `may_run_here`, else on a thread of the queue. What `job` throws here is the caller's; on
  /// the thread it goes to `failed`.
  void submit(c10::Stream after, bool may_run_here, Job job, Failed failed);

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
