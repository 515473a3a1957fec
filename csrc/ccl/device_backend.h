// What the process groups for our device share: every call is checked, counted, compared with rank 0's, and
// then begun, which is where they differ.
#pragma once

#include <atomic>
#include <initializer_list>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ccl/comparer.h"
#include "ccl/ledger.h"
#include "ccl/tensors.h"

namespace tefl::ccl {

class DeviceBackend : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Timeout = std::chrono::milliseconds;

  DeviceBackend(int rank, int size, const c10::intrusive_ptr<c10d::Store>& store, Timeout timeout);

  const std::string getBackendName() const final { return "tefl"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() final;
  Work endCoalescing() final;
  void setSequenceNumberForGroup() final {}
  uint64_t getSequenceNumberForGroup() final { return calls_; }
  void abort() final { give_up("the process group was aborted"); }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) final;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) final;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) final;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& opts) final;
  Work allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) final;
  Work allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) final;
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) final;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& opts) final;
  Work reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& opts) final;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& opts) final;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& opts) final;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) final;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) final;
  Work gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) final;
  Work scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) final;
  Work send(Tensors& tensors, int destination, int tag) final;
  Work recv(Tensors& tensors, int source, int tag) final;
  Work recvAnysource(Tensors& tensors, int tag) final;
  Work barrier(const c10d::BarrierOptions& opts) final;

 protected:
  /// The beginnings, in the order above: `call` is checked and counted, and its tensors are on one device of
  /// ours, strided and without gaps.
  virtual Work begin_all_reduce(const Call& call, Tensors& tensors, const c10d::AllreduceOptions& opts) = 0;
  virtual Work begin_all_reduce_coalesced(const Call& call, Tensors& tensors,
                                          const c10d::AllreduceCoalescedOptions& opts) = 0;
  virtual Work begin_broadcast(const Call& call, Tensors& tensors, const c10d::BroadcastOptions& opts) = 0;
  virtual Work begin_reduce(const Call& call, Tensors& tensors, const c10d::ReduceOptions& opts) = 0;
  virtual Work begin_all_gather(const Call& call, Lists& outputs, Tensors& inputs,
                                const c10d::AllgatherOptions& opts) = 0;
  virtual Work begin_all_gather_coalesced(const Call& call, Lists& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) = 0;
  virtual Work begin_all_gather_into(const Call& call, at::TensorList outputs, at::TensorList inputs,
                                     const c10d::AllgatherOptions& opts) = 0;
  virtual Work begin_reduce_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                                    const c10d::ReduceScatterOptions& opts) = 0;
  virtual Work begin_reduce_scatter_from(const Call& call, at::TensorList outputs, at::TensorList inputs,
                                         const c10d::ReduceScatterOptions& opts) = 0;
  virtual Work begin_all_to_all(const Call& call, Tensors& outputs, Tensors& inputs,
                                const c10d::AllToAllOptions& opts) = 0;
  virtual Work begin_all_to_all_single(const Call& call, at::Tensor& output, at::Tensor& input,
                                       std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits,
                                       const c10d::AllToAllOptions& opts) = 0;
  virtual Work begin_gather(const Call& call, Lists& outputs, Tensors& inputs,
                            const c10d::GatherOptions& opts) = 0;
  virtual Work begin_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                             const c10d::ScatterOptions& opts) = 0;
  virtual Work begin_send(const Call& call, Tensors& tensors, int destination, int tag) = 0;
  virtual Work begin_recv(const Call& call, Tensors& tensors, int source, int tag) = 0;
  virtual Work begin_recv_from_any(const Call& call, Tensors& tensors, int tag) = 0;
  virtual Work begin_barrier(const Call& call, const c10d::BarrierOptions& opts) = 0;

  /// A group of calls begins and ends; `works` are those that kept() was given between.
  virtual void begin_group() {}
  virtual Work end_group(const Call& call, std::vector<Work> works) = 0;
  Work kept(Work work);
  bool is_in_group() const { return coalescing_; }
  /// Ends a group that is still open.
  void leave_group();

  /// A ValueError where the library beneath cannot move the elements of such tensors.
  virtual void require_movable(const Call&, std::initializer_list<at::TensorList>) const {}
  /// Sees to a call that is to be compared with rank 0's: as below, unless it can be held up in a better way.
  virtual void compare(Call& call) { compare_within_grace(call); }
  /// Holds a call up until rank 0 has announced its own, for kGrace at most; then it goes on, and is compared
  /// when rank 0 comes.
  void compare_within_grace(const Call& call);
  /// Throws a DistBackendError where the group has failed.
  void require_sound(const Call& call) const;

  /// Ends what is under way, as far as the library beneath can. From any thread.
  virtual void abort_beneath(const std::string& reason) = 0;
  /// Every later call fails with `reason`, and what is under way ends.
  void give_up(const std::string& reason);
  /// What made the group fail, "" while it is sound.
  virtual std::string failure() const;
  /// Runs `check`; what it throws makes the group fail, too.
  template <class Check>
  void or_give_up(const Check& check) {
    try {
      check();
    } catch (...) {
      give_up(reason_of(std::current_exception()));
      throw;
    }
  }

  /// To be called by destructors of derived classes: no thread of ours calls them afterwards.
  void stop_comparing();

  /// Whether the parts of all_gather and reduce_scatter may differ in size from rank to rank.
  virtual bool takes_parts_of_different_sizes() const { return false; }

  const std::shared_ptr<Ledger> ledger_;  // work that is not done yet keeps it, too

 private:
  Call named(c10d::OpType type, const char* name) const;
  Call rooted(c10d::OpType type, const char* name, int64_t root) const;
  Call reducing(c10d::OpType type, const char* name, const c10d::ReduceOp& op, at::TensorList tensors) const;
  /// The reduction of a call, which must be one of all `tensors`' dtypes.
  static void set_reduction(Call& call, const c10d::ReduceOp& op, at::TensorList tensors);
  Call message(c10d::OpType type, const char* name, std::optional<int> peer) const;
  /// Fills in `call`, of `all` those tensors, whose size `measured` tells; counts it and compares it.
  void admit(Call& call, at::TensorList measured, std::initializer_list<at::TensorList> all);
  /// The same of a call that wants one tensor.
  void admit_one(Call& call, const Tensors& tensors);
  /// The same of a list that has a part for each rank, the call's `what`, and this rank's `own`.
  void admit_parts(Call& call, const char* what, const Tensors& parts, const Tensors& own);
  /// Counts a call that is complete and compares it; throws where the group has failed.
  void enter(Call& call);
  Call coalesced_call() const;
  /// Of a tensor in coordinate form. Done when it returns.
  Work all_reduce_sparse(at::Tensor& tensor, const c10d::AllreduceOptions& opts);

  std::atomic<uint64_t> calls_{0}, messages_{0};
  bool coalescing_ = false;
  std::vector<Work> coalesced_;
  mutable std::mutex failure_mutex_;
  std::string failure_;
  std::atomic<bool> has_failed_{false};  // lets failure() of a sound group go without the lock
  Comparer comparer_;
};

}  // namespace tefl::ccl
