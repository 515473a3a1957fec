#include "ccl/stream_work.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "ccl/let_go.h"
#include "device/allocator.h"
#include "device/events.h"
#include "device/streams.h"

namespace tefl::ccl {

StreamWork::StreamWork(Call call, std::vector<at::Tensor> outputs, std::shared_ptr<Ledger> ledger,
                       std::vector<at::Tensor> kept, c10::Stream stream,
                       std::shared_ptr<Communicator> communicator)
    : DeviceWork(std::move(call), std::move(outputs), std::move(ledger)),
      kept_(std::move(kept)),
      stream_(stream),
      communicator_(std::move(communicator)) {}

// It still keeps what it was given where it was never watched: the call failed when a part of it was
// enqueued.
StreamWork::~StreamWork() {
  stay_for_stream();
  device::destroy_event(event_, stream_.device_index());
}

void StreamWork::enqueued() { device::record_event(&event_, stream_, /*timing=*/false); }

bool StreamWork::reached() const { return event_ != nullptr && device::query_event(event_); }

void StreamWork::end(std::exception_ptr error) { finish(error ? explained(error) : nullptr); }

// Whatever the host was told of failed work, the library may still be at it.
void StreamWork::release() {
  if (!isSuccess()) stay_for_stream();
  let_go(kept_);
}

void StreamWork::stay_for_stream() const {
  if (!device::may_release()) return;
  for (const auto& tensor : kept_) device::allocator().recordStream(tensor.storage().data_ptr(), stream_);
}

bool StreamWork::isCompleted() { return Work::isCompleted() || reached(); }

bool StreamWork::isSuccess() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !exception_;
}

std::exception_ptr StreamWork::exception() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return exception_;
}

// The watchdog ends the work, successfully or not.
void StreamWork::block_host(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  block(lock, timeout, [&] { return completed_; });
}

bool StreamWork::wait(std::chrono::milliseconds timeout) {
  if (call_.type == c10d::OpType::BARRIER || timeout != kNoTimeout) block_host(timeout);
  if (const auto error = exception()) std::rethrow_exception(error);
  synchronize();
  return true;
}

void StreamWork::synchronize() { order_behind(device::current_stream(stream_.device_index())); }

void StreamWork::order_behind(c10::Stream stream) const {
  if (event_ == nullptr) fail(call_, "waited for inside its group of calls, which begins it when it ends");
  device::block_stream(event_, stream);
}

// Complete at once, in stream order: whoever uses the future has its stream wait for the one of its mark,
// which is behind this work, and not behind what is in our stream since.
void StreamWork::promise(const Future& future) {
  if (const auto error = exception()) return future->setError(error);
  const auto mark = device::new_stream(stream_.device_index(), 0);
  order_behind(mark);
  const c10::StreamGuard in(mark);
  future->markCompleted(value());
}

}  // namespace tefl::ccl
