// Work in streams of a vendor's collectives, and the thread that sees to it that none of it hangs.
#pragma once

#include <c10/core/Stream.h>

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "ccl/communicator.h"
#include "ccl/work.h"

namespace tefl::ccl {

/// Work that is done when a stream has come so far. Waiting for it makes the current stream wait, and the
/// host only where a time-out is given, or of a barrier.
class StreamWork final : public DeviceWork {
 public:
  /// `kept`: what must stay in memory until the work is done.
  StreamWork(Call call, std::vector<at::Tensor> outputs, std::shared_ptr<Ledger> ledger,
             std::vector<at::Tensor> kept, c10::Stream stream, std::shared_ptr<Communicator> communicator);
  ~StreamWork() override;

  /// All of it is in the stream now.
  void enqueued();

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;

  Communicator& communicator() const { return *communicator_; }
  bool reached() const;
  /// Ends it, with what went wrong if anything.
  void end(std::exception_ptr error);
  /// After the end: nothing of it need stay in memory.
  void release();

 protected:
  void promise(const Future& future) override;

 private:
  void block_host(std::chrono::milliseconds timeout);

  std::vector<at::Tensor> kept_;
  const c10::Stream stream_;
  const std::shared_ptr<Communicator> communicator_;
  void* event_ = nullptr;
};

/// Watches work until it is done; aborts a communicator whose work takes too long, and fails all its work.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  ~Watchdog();

  void watch(c10::intrusive_ptr<StreamWork> work, std::chrono::milliseconds timeout);

  /// What made the group fail: every later call fails with it. "" while it is sound.
  std::string failure() const;
  /// Aborts what is under way.
  void abort(const std::string& reason);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    c10::intrusive_ptr<StreamWork> work;
    Clock::time_point deadline;
    std::chrono::milliseconds allowed;
  };
  void run();
  /// Whether the entry is over, with or without success. Under the lock.
  bool settle(Entry& entry);

  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> entries_;
  std::string failure_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace tefl::ccl
