// Streams and the marks that order them: a stream is a queue with a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "faults.h"
#include "registry.h"

namespace tefl_sim {

/// A point in a stream's work, reached once. Whoever waits holds it, so an event may move on or be destroyed.
class Mark {
 public:
  void reach();
  bool reached() const;
  void wait() const;
  /// When it was reached. Only once it was.
  std::chrono::steady_clock::time_point time() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<std::chrono::steady_clock::time_point> time_;
};

/// Work in order, done by a thread that starts with the first task. A task that throws leaves an asynchronous
/// error; the work after it is still done.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  using Task = std::function<void()>;

  Stream(int32_t device, int32_t priority) : device(device), priority(priority) {}

  /// `what` the task does, for describe().
  void enqueue(Task task, std::string what = {});
  /// Enqueues a mark that is reached when everything before it is done.
  std::shared_ptr<Mark> mark();
  bool idle() const;
  /// Waits for everything enqueued before the call.
  void wait() const;
  /// The message of the first task that failed since the last call.
  std::optional<std::string> take_error();
  /// What the stream is doing now, "" where it does nothing.
  std::string describe() const;
  /// Lets the thread end once the queue is empty; nothing is enqueued afterwards.
  void close();

  const int32_t device;
  /// A label: all streams run at the same time, so there is nothing for a more urgent one to overtake.
  const int32_t priority;

 private:
  void start();
  void work();
  void run(const Task& task);

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  mutable std::condition_variable done_;
  struct Work {
    Task task;
    std::string what;
  };
  std::deque<Work> queue_;
  std::string doing_;
  std::atomic<uint64_t> enqueued_{0};   // written with the mutex held, read without: asking an idle stream
  std::atomic<uint64_t> completed_{0};  // is what every operator does
  std::atomic<bool> failed_{false};     // whether there is an error_
  bool started_ = false;
  bool closed_ = false;
  std::optional<std::string> error_;
};

Registry<tefl_stream, Stream>& streams();

/// The default stream that `handle` is; null for any other handle, good or bad.
Stream* default_stream_of(tefl_stream handle) noexcept;

/// Calls `use` with the stream behind `handle`. Takes no lock for a default stream.
template <typename Use>
auto with_stream(tefl_stream handle, const Use& use) {
  if (Stream* found = default_stream_of(handle)) return use(*found);
  return use(*streams().find(handle));
}

/// Enqueues what a fault can be injected into: `call` is kMemcpy, kMemset or kLaunch.
void enqueue_operation(Stream& stream, Call call, Stream::Task task, std::string what);

/// Makes the default stream of each device. Starts no thread.
void create_default_streams(int32_t device_count);

/// Throws the asynchronous error of `stream`, if it has one, as TEFL_ERR_DEVICE.
void raise_error(Stream& stream);

}  // namespace tefl_sim
