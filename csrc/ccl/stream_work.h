// Work in streams of a vendor's collectives.
#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "ccl/communicator.h"
#include "ccl/work.h"

namespace tefl::ccl {

/// Work that is done when a stream has come so far. Waiting for it makes the current stream wait, and the
/// host only where a time-out is given, or of a barrier.
class StreamWork final : public DeviceWork {
 public:
  /// `kept`: what must stay in memory until the work is done. What of it the stream may still use when the
  /// work ends otherwise is given to nobody before the stream is past that.
  StreamWork(Call call, std::vector<at::Tensor> outputs, std::shared_ptr<Ledger> ledger,
             std::vector<at::Tensor> kept, c10::Stream stream, std::shared_ptr<Communicator> communicator);
  ~StreamWork() override;

  /// To put more into, while the work is being enqueued.
  std::vector<at::Tensor>& kept() { return kept_; }
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
  /// After the end: keeps nothing any more.
  void release();

 protected:
  void promise(const Future& future) override;

 private:
  void stay_for_stream() const;
  /// Has `stream` wait for this work.
  void order_behind(c10::Stream stream) const;
  void block_host(std::chrono::milliseconds timeout);

  std::vector<at::Tensor> kept_;
  const c10::Stream stream_;
  const std::shared_ptr<Communicator> communicator_;
  void* event_ = nullptr;  // until it is enqueued
};

}  // namespace tefl::ccl
