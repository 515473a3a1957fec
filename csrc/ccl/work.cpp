#include "ccl/work.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "ccl/let_go.h"
#include "device/streams.h"

namespace tefl::ccl {
namespace {

// Completes `future` now, with values that are in memory: its mark goes into streams that nothing is in.
void complete_now(c10::ivalue::Future& future, c10::IValue value) {
  std::vector<c10::Stream> idle;
  for (const auto& device : future.devices()) idle.push_back(device::new_stream(device.index(), 0));
  const c10::MultiStreamGuard streams(idle);
  future.markCompleted(std::move(value));
}

// Completes `future` from any thread of a library's, out of which nothing may come.
void settle(c10::ivalue::Future& future, const std::exception_ptr& error, c10::IValue value) {
  if (error) return future.setError(error);
  try {
    complete_now(future, std::move(value));
  } catch (...) {  // no stream for its mark
    future.setErrorIfNeeded(std::current_exception());
  }
}

}  // namespace

// ------------------------------------------------------------------------------------- what is shared --

DeviceWork::DeviceWork(Call call, std::vector<at::Tensor> outputs, std::shared_ptr<Ledger> ledger)
    : c10d::Work(call.rank, call.type),
      call_(std::move(call)),
      outputs_(std::move(outputs)),
      ledger_(std::move(ledger)) {}

std::exception_ptr DeviceWork::explained(const std::exception_ptr& error) const {
  return failure_of(call_, error, ledger_->known_difference(call_));
}

void DeviceWork::fail_late(std::chrono::milliseconds timeout) const {
  fail(call_, "not done after the " + std::to_string(timeout.count()) + " ms that wait() was given");
}

std::vector<c10::Device> DeviceWork::devices() const {
  std::vector<c10::Device> found;
  for (const auto& tensor : outputs_) {
    if (std::find(found.begin(), found.end(), tensor.device()) == found.end())
      found.push_back(tensor.device());
  }
  return found;
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  const std::lock_guard<std::mutex> lock(future_mutex_);
  if (!future_) {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices());
    promise(future);  // one that nobody sees to is not handed out
    future_ = std::move(future);
  }
  return future_;
}

// -------------------------------------------------------------------------------- of an inner group --

void BegunWork::begun(c10::intrusive_ptr<c10d::Work> inner, std::exception_ptr error) {
  if (error) return finish(explained(error));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    inner_ = std::move(inner);
  }
  cv_.notify_all();
}

c10::intrusive_ptr<c10d::Work> BegunWork::inner() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return inner_;
}

c10::intrusive_ptr<c10d::Work> BegunWork::await_inner(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  block(lock, timeout, [&] { return is_begun(); });
  if (exception_) std::rethrow_exception(exception_);
  return inner_;
}

BegunWork::Future BegunWork::take_promised() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(promised_, {});
}

// -------------------------------------------------------------------------------- that ends by itself --

void ForwardedWork::begun(c10::intrusive_ptr<c10d::Work> inner, std::exception_ptr error) {
  BegunWork::begun(std::move(inner), std::move(error));
  if (const auto future = take_promised()) follow(future);
}

bool ForwardedWork::isCompleted() {
  const auto begun = inner();
  return begun ? begun->isCompleted() : Work::isCompleted();
}

bool ForwardedWork::isSuccess() const {
  const auto begun = inner();
  return begun ? begun->isSuccess() : Work::isSuccess();
}

std::exception_ptr ForwardedWork::exception() const {
  const auto begun = inner();
  if (!begun) return Work::exception();
  const auto error = begun->exception();
  return error ? explained(error) : nullptr;
}

bool ForwardedWork::wait(std::chrono::milliseconds timeout) {
  const auto begun = await_inner(timeout);
  try {
    return call_.rank == 0 ? wait_in_steps(*begun, timeout) : begun->wait(timeout);
  } catch (...) {
    if (!begun->isCompleted()) fail_late(timeout);
    std::rethrow_exception(explained(std::current_exception()));
  }
}

// Gloo's work raises after a step that is too short, and goes on. It may be done by the time of that.
bool ForwardedWork::wait_in_steps(c10d::Work& begun, std::chrono::milliseconds timeout) const {
  for (const Steps steps(timeout);;) {
    try {
      return begun.wait(steps.next());
    } catch (...) {
      if (begun.isCompleted()) return begun.wait(kGrace);
      if (steps.are_over()) throw;
    }
    meanwhile();
  }
}

void ForwardedWork::promise(const Future& future) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_begun()) {
      promised_ = future;
      return;
    }
  }
  follow(future);
}

// Gloo's thread calls back, out of which nothing may come.
void ForwardedWork::follow(const Future& future) {
  const auto begun = inner();
  if (!begun) return future->setError(Work::exception());
  auto self = c10::intrusive_ptr<ForwardedWork>::unsafe_reclaim_from_nonowning(this);
  begun->getFuture()->addCallback([self, future = Future(future)](c10::ivalue::Future& inner) mutable {
    settle(*future, inner.hasError() ? self->explained(inner.exception_ptr()) : nullptr, self->value());
    let_go(self);
    let_go(future);
  });
}

// --------------------------------------------------------------------------- with something left to do --

bool FinishingWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  block(lock, timeout, [&] { return completed_; });
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void FinishingWork::begun(c10::intrusive_ptr<c10d::Work> inner, std::exception_ptr error) {
  if (error) return end(error);
  auto self = c10::intrusive_ptr<FinishingWork>::unsafe_reclaim_from_nonowning(this);
  BegunWork::begun(inner);
  inner->getFuture()->addCallback([self](c10::ivalue::Future& future) mutable {
    self->end(future.hasError() ? future.exception_ptr() : nullptr);
    let_go(self);
  });
}

void FinishingWork::end(std::exception_ptr error) {
  try {
    if (!error) after_();
  } catch (...) {
    error = std::current_exception();
  }
  finish(error ? explained(error) : nullptr);
  if (const auto future = take_promised()) settle(*future, exception_, value());
}

void FinishingWork::promise(const Future& future) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!completed_) {
      promised_ = future;
      return;
    }
  }
  settle(*future, exception_, value());  // written before completed_ was, never again
}

// ----------------------------------------------------------------------------------- ended by waiting --

bool WaitedWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::timed_mutex> one_waiter(wait_mutex_, std::defer_lock);
  if (timeout == kNoTimeout) {
    one_waiter.lock();
  } else if (!one_waiter.try_lock_for(timeout)) {
    fail_late(timeout);
  }
  const auto begun = await_inner(timeout);
  if (Work::isCompleted()) return true;
  try {
    if (!begun->wait(timeout)) fail(call_, "aborted");
    if (after_) after_();
  } catch (...) {
    finish(explained(std::current_exception()));
    std::rethrow_exception(exception_);
  }
  finish();
  return true;
}

int WaitedWork::sourceRank() const {
  const auto begun = inner();
  return begun ? begun->sourceRank() : -1;
}

// A thread of its own, since nobody else is told when the data is there.
void WaitedWork::promise(const Future& given) {
  auto self = c10::intrusive_ptr<WaitedWork>::unsafe_reclaim_from_nonowning(this);
  auto future = given;
  std::thread([self, future]() mutable {
    try {
      self->wait();
      complete_now(*future, self->value());
    } catch (...) {
      future->setError(std::current_exception());
    }
    let_go(self);
    let_go(future);
  }).detach();
}

// ------------------------------------------------------------------------------------- ordered by streams --

bool SharedWork::wait(std::chrono::milliseconds timeout) {
  try {
    return inner_->wait(timeout);
  } catch (...) {
    std::rethrow_exception(explained(std::current_exception()));
  }
}

// The inner future's callback runs in streams that are behind the inner work; both names share them.
void SharedWork::promise(const Future& future) {
  auto self = c10::intrusive_ptr<SharedWork>::unsafe_reclaim_from_nonowning(this);
  inner_->getFuture()->addCallback([self, future](c10::ivalue::Future& inner) {
    if (inner.hasError()) {
      future->setError(self->explained(inner.exception_ptr()));
    } else {
      future->markCompleted(self->value());
    }
  });
}

void DoneWork::promise(const Future& future) { complete_now(*future, value()); }

// ------------------------------------------------------------------------------------------- together --

std::vector<at::Tensor> results_of(const std::vector<c10::intrusive_ptr<c10d::Work>>& works) {
  std::vector<at::Tensor> all;
  for (const auto& work : works) {
    const auto some = work->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

WorkGroup::WorkGroup(Call call, std::shared_ptr<Ledger> ledger,
                     std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : DeviceWork(std::move(call), results_of(works), std::move(ledger)), works_(std::move(works)) {}

bool WorkGroup::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
}

bool WorkGroup::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

bool WorkGroup::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

void WorkGroup::synchronize() {
  for (const auto& work : works_) work->synchronize();
}

// The current stream is behind one part alone; and this may be gloo's thread, out of which nothing may come.
void WorkGroup::complete(c10::ivalue::Future& future) {
  try {
    synchronize();
    future.markCompleted(value());
  } catch (...) {
    future.setErrorIfNeeded(std::current_exception());
  }
}

void WorkGroup::promise(const Future& future) {
  auto left = std::make_shared<std::atomic<size_t>>(works_.size());
  auto self = c10::intrusive_ptr<WorkGroup>::unsafe_reclaim_from_nonowning(this);
  if (works_.empty()) return complete_now(*future, value());
  for (const auto& work : works_) {
    work->getFuture()->addCallback([self, left, future = Future(future)](c10::ivalue::Future& part) mutable {
      if (part.hasError()) {
        future->setErrorIfNeeded(part.exception_ptr());
      } else if (--*left == 0) {
        self->complete(*future);
      }
      let_go(self);
      let_go(future);
    });
  }
}

}  // namespace tefl::ccl
