#include "ccl/watchdog.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "ccl/let_go.h"
#include "device/events.h"
#include "device/streams.h"

namespace tefl::ccl {
namespace {

constexpr std::chrono::milliseconds kLook{2};  // how often streams are asked: they tell nobody by themselves

}  // namespace

// ----------------------------------------------------------------------------------------------- the work --

StreamWork::StreamWork(Call call, std::vector<at::Tensor> outputs, std::shared_ptr<Ledger> ledger,
                       std::vector<at::Tensor> kept, c10::Stream stream,
                       std::shared_ptr<Communicator> communicator)
    : DeviceWork(std::move(call), std::move(outputs), std::move(ledger)),
      kept_(std::move(kept)),
      stream_(stream),
      communicator_(std::move(communicator)) {}

StreamWork::~StreamWork() { device::destroy_event(event_, stream_.device_index()); }

void StreamWork::enqueued() { device::record_event(&event_, stream_, /*timing=*/false); }

bool StreamWork::reached() const { return device::query_event(event_); }

void StreamWork::end(std::exception_ptr error) { finish(error ? explained(error) : nullptr); }

void StreamWork::release() { let_go(kept_); }

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
  const auto done = [&] { return completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, done);
  } else if (!cv_.wait_for(lock, timeout, done)) {
    fail(call_, "not done after the " + std::to_string(timeout.count()) + " ms that wait() was given");
  }
}

bool StreamWork::wait(std::chrono::milliseconds timeout) {
  if (call_.type == c10d::OpType::BARRIER || timeout != kNoTimeout) block_host(timeout);
  if (const auto error = exception()) std::rethrow_exception(error);
  synchronize();
  return true;
}

void StreamWork::synchronize() {
  device::block_stream(event_, device::current_stream(stream_.device_index()));
}

// Complete at once, in stream order: whoever uses the future has its stream wait for ours.
void StreamWork::promise(const Future& future) {
  const c10::StreamGuard ours(stream_);
  future->markCompleted(value());
}

// ------------------------------------------------------------------------------------------- the watchdog --

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::watch(c10::intrusive_ptr<StreamWork> work, std::chrono::milliseconds timeout) {
  const auto allowed = timeout > kNoTimeout ? timeout : timeout_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_back({std::move(work), Clock::now() + allowed, allowed});
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

std::string Watchdog::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Watchdog::abort(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty()) failure_ = reason;
  for (const auto& entry : entries_) entry.work->communicator().abort(reason);
}

bool Watchdog::settle(Entry& entry) {
  auto& communicator = entry.work->communicator();
  const Call& call = entry.work->call();
  std::string error = communicator.error();
  if (error.empty() && Clock::now() > entry.deadline && !entry.work->reached()) {
    error = "not done within its time-out of " + std::to_string(entry.allowed.count()) + " ms";
    communicator.abort(call.describe() + ": " + error);
  }
  if (!error.empty()) {
    if (failure_.empty()) failure_ = call.describe() + ": " + error;
    entry.work->end(std::make_exception_ptr(std::runtime_error(error)));
    return true;
  }
  if (!entry.work->reached()) return false;
  entry.work->end(nullptr);
  return true;
}

void Watchdog::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !entries_.empty(); });
    if (ending_) return;
    std::list<Entry> over;  // let go without the lock: what it held may be the last of its kind
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto next = std::next(entry);
      if (settle(*entry)) over.splice(over.end(), entries_, entry);
      entry = next;
    }
    lock.unlock();
    for (const auto& entry : over) entry.work->release();
    let_go(over);
    lock.lock();
    if (!entries_.empty()) changed_.wait_for(lock, kLook, [&] { return ending_; });
  }
}

}  // namespace tefl::ccl
