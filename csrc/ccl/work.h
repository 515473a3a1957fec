// What a collective returns: PyTorch's Work for tensors of our device.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "ccl/ledger.h"

namespace tefl::ccl {

/// The part that all kinds of work share: the call, its results, and a future of them.
class DeviceWork : public c10d::Work {
 public:
  /// `ledger` is asked why, where the work fails.
  DeviceWork(Call call, std::vector<at::Tensor> outputs, std::shared_ptr<Ledger> ledger);

  std::vector<at::Tensor> result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return call_.number; }
  /// Completes with the list of results, in stream order; made on first demand.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  const Call& call() const { return call_; }

 protected:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;
  /// Called until it succeeds, for a future that nobody has yet: sees to its completion.
  virtual void promise(const Future& future) = 0;
  /// The results as what a future holds.
  c10::IValue value() const { return outputs_; }
  std::vector<c10::Device> devices() const;
  /// Between two steps of a wait that takes longer.
  virtual void meanwhile() const {}
  /// Waits until `done`, of what `lock` on mutex_ guards; fails where that takes longer than `timeout`.
  template <class Done>
  void block(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout, const Done& done);
  [[noreturn]] void fail_late(std::chrono::milliseconds timeout) const;
  /// `error` as this work's own, with what is known of why.
  std::exception_ptr explained(const std::exception_ptr& error) const;

  const Call call_;
  std::vector<at::Tensor> outputs_;
  const std::shared_ptr<Ledger> ledger_;

 private:
  std::mutex future_mutex_;
  Future future_;
};

/// Work of an inner process group on the host, begun once the current stream has come so far.
class BegunWork : public DeviceWork {
 public:
  using DeviceWork::DeviceWork;

  /// The inner work has begun, or could not.
  virtual void begun(c10::intrusive_ptr<c10d::Work> inner, std::exception_ptr error = nullptr);
  void synchronize() override {}

 protected:
  /// The inner work once it has begun: null before, and where it could not.
  c10::intrusive_ptr<c10d::Work> inner() const;
  /// The same, waited for; throws where it could not begin, and where it does not within `timeout`.
  c10::intrusive_ptr<c10d::Work> await_inner(std::chrono::milliseconds timeout);

  /// Under mutex_: whether it has begun, or could not.
  bool is_begun() const { return inner_ || completed_; }
  /// What promised_ was, once.
  Future take_promised();
  void meanwhile() const override { ledger_->answer(call_); }

  Future promised_;  // asked for too early to be seen to; guarded by mutex_

 private:
  c10::intrusive_ptr<c10d::Work> inner_;  // guarded by mutex_
};

/// Sees through to the inner work, which ends by itself and leaves nothing to do: most of gloo's collectives.
class ForwardedWork final : public BegunWork {
 public:
  using BegunWork::BegunWork;

  void begun(c10::intrusive_ptr<c10d::Work> inner, std::exception_ptr error = nullptr) override;
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Blocks the caller until the work is done: what is enqueued next is then behind it in any stream.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

 protected:
  void promise(const Future& future) override;

 private:
  void follow(const Future& future);
  bool wait_in_steps(c10d::Work& begun, std::chrono::milliseconds timeout) const;
};

/// Does something to the results after the inner work, in gloo's thread, and is done then.
class FinishingWork final : public BegunWork {
 public:
  /// `after` runs on the results.
  FinishingWork(Call call, std::vector<at::Tensor> outputs, std::shared_ptr<Ledger> ledger,
                std::function<void()> after)
      : BegunWork(std::move(call), std::move(outputs), std::move(ledger)), after_(std::move(after)) {}

  void begun(c10::intrusive_ptr<c10d::Work> inner, std::exception_ptr error = nullptr) override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

 protected:
  void promise(const Future& future) override;

 private:
  /// Ends the work, once; with `error`, if it is one.
  void end(std::exception_ptr error);

  std::function<void()> after_;
};

/// Completes in wait() alone, as gloo's messages and reduce-scatters do.
class WaitedWork final : public BegunWork {
 public:
  /// `after`, if any, runs on the results.
  WaitedWork(Call call, std::vector<at::Tensor> outputs, std::shared_ptr<Ledger> ledger,
             std::function<void()> after)
      : BegunWork(std::move(call), std::move(outputs), std::move(ledger)), after_(std::move(after)) {}

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  int sourceRank() const override;

 protected:
  void promise(const Future& future) override;

 private:
  std::function<void()> after_;
  std::timed_mutex wait_mutex_;  // the inner work bears one waiter
};

/// Work of an inner process group that orders streams itself, on memory that both names share.
class SharedWork final : public DeviceWork {
 public:
  SharedWork(Call call, std::vector<at::Tensor> outputs, std::shared_ptr<Ledger> ledger,
             c10::intrusive_ptr<c10d::Work> inner)
      : DeviceWork(std::move(call), std::move(outputs), std::move(ledger)), inner_(std::move(inner)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { inner_->synchronize(); }
  void abort() override { inner_->abort(); }

 protected:
  void promise(const Future& future) override;

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
};

/// Work that is done, and its results in memory.
class DoneWork final : public DeviceWork {
 public:
  using DeviceWork::DeviceWork;

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds = kNoTimeout) override { return true; }
  void synchronize() override {}

 protected:
  void promise(const Future& future) override;
};

/// A wait in steps, of kGrace at most.
class Steps {
 public:
  explicit Steps(std::chrono::milliseconds timeout)
      : end_(timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout) {}
  bool are_over() const { return Clock::now() >= end_; }
  /// Of the next one; never kNoTimeout.
  std::chrono::milliseconds next() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
    return std::clamp(left, std::chrono::milliseconds(1), kGrace);
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end_;
};

template <class Done>
void DeviceWork::block(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout,
                       const Done& done) {
  const Steps steps(timeout);
  while (!cv_.wait_for(lock, steps.next(), done)) {
    if (steps.are_over()) fail_late(timeout);
    lock.unlock();
    meanwhile();
    lock.lock();
  }
}

/// The results of all of them, in order.
std::vector<at::Tensor> results_of(const std::vector<c10::intrusive_ptr<c10d::Work>>& works);

/// Several works as one: what endCoalescing() returns.
class WorkGroup final : public DeviceWork {
 public:
  WorkGroup(Call call, std::shared_ptr<Ledger> ledger, std::vector<c10::intrusive_ptr<c10d::Work>> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;

 protected:
  void promise(const Future& future) override;

 private:
  void complete(c10::ivalue::Future& future);

  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace tefl::ccl
