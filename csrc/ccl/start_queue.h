// Starts jobs in the order they came, each after the stream it belongs behind, without blocking the caller.
#pragma once

#include <c10/core/Stream.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace tefl::ccl {

class StartQueue {
 public:
  ~StartQueue();

  /// Runs `job` once all work now in `after` is done: here and now where that is so already and no earlier
  /// job is waiting, else on a thread of the queue. What `job` throws here is the caller's; on the thread it
  /// goes to `failed`.
  void submit(c10::Stream after, std::function<void()> job, std::function<void(std::exception_ptr)> failed);

 private:
  struct Entry {
    c10::Stream after;
    void* event;
    std::function<void()> job;
    std::function<void(std::exception_ptr)> failed;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> waiting_;
  bool busy_ = false;  // the thread has taken a job out and not finished it
  bool ending_ = false;
  std::thread thread_;  // started by the first job that has to wait
};

}  // namespace tefl::ccl
