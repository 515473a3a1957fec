// A process group for our device over another one for the alias device: gloo for the CPU, NCCL for a GPU.
#pragma once

#include <functional>

#include "ccl/aliases.h"
#include "ccl/device_backend.h"
#include "ccl/start_queue.h"
#include "ccl/work.h"

namespace tefl::ccl {

/// Every collective gets zero-copy aliases of its tensors and is begun, on the inner group, after what the
/// current stream holds. On the host that is gloo, whose averages are computed here; on a GPU a backend that
/// orders streams, reduces in every way, and treats tensors as NCCL does (AliasKind). What it lacks raises
/// its own error.
class AliasBackend final : public DeviceBackend {
 public:
  AliasBackend(c10::intrusive_ptr<c10d::Backend> inner, const c10::intrusive_ptr<c10d::Store>& store,
               Timeout timeout);
  ~AliasBackend() override;

  /// Gloo begins messages one by one, which torch's batch_isend_irecv does at less cost than a group of them.
  bool supportsCoalescing() const override { return !on_host_; }
  void shutdown() override;

 protected:
  Work begin_all_reduce(const Call& call, Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  Work begin_all_reduce_coalesced(const Call& call, Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& opts) override;
  Work begin_broadcast(const Call& call, Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  Work begin_reduce(const Call& call, Tensors& tensors, const c10d::ReduceOptions& opts) override;
  Work begin_all_gather(const Call& call, Lists& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& opts) override;
  Work begin_all_gather_coalesced(const Call& call, Lists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& opts) override;
  Work begin_all_gather_into(const Call& call, at::TensorList outputs, at::TensorList inputs,
                             const c10d::AllgatherOptions& opts) override;
  Work begin_reduce_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                            const c10d::ReduceScatterOptions& opts) override;
  Work begin_reduce_scatter_from(const Call& call, at::TensorList outputs, at::TensorList inputs,
                                 const c10d::ReduceScatterOptions& opts) override;
  Work begin_all_to_all(const Call& call, Tensors& outputs, Tensors& inputs,
                        const c10d::AllToAllOptions& opts) override;
  Work begin_all_to_all_single(const Call& call, at::Tensor& output, at::Tensor& input,
                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                               const c10d::AllToAllOptions& opts) override;
  Work begin_gather(const Call& call, Lists& outputs, Tensors& inputs,
                    const c10d::GatherOptions& opts) override;
  Work begin_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                     const c10d::ScatterOptions& opts) override;
  Work begin_send(const Call& call, Tensors& tensors, int destination, int tag) override;
  Work begin_recv(const Call& call, Tensors& tensors, int source, int tag) override;
  Work begin_recv_from_any(const Call& call, Tensors& tensors, int tag) override;
  Work begin_barrier(const Call& call, const c10d::BarrierOptions& opts) override;

  void begin_group() override;
  Work end_group(const Call& call, std::vector<Work> works) override;
  void require_movable(const Call& call, std::initializer_list<at::TensorList> all) const override;
  void compare(Call& call) override;
  void abort_beneath(const std::string&) override { inner_->abort(); }
  /// NCCL does; gloo does not.
  bool takes_parts_of_different_sizes() const override { return !on_host_; }

 private:
  using Start = std::function<Work(c10d::Backend&)>;
  using Finish = std::function<void()>;

  /// Calls `begin(inner)`, which returns the inner group's work, after what the current stream of the call's
  /// device holds. Templates, so that a library that orders streams itself is called without a std::function;
  /// defined beside the collectives, which alone use them.
  template <class Begin>
  Work run(const Call& call, at::TensorList outputs, Begin&& begin);
  /// The same of `begin(inner, out, opts)`, where `opts` has the reduction that the library is to do; on the
  /// host the results in `out`, aliases of the outputs, are scaled afterwards where this rank `receives`
  /// them.
  template <class Opts, class Begin>
  Work run_reduction(const Call& call, at::TensorList outputs, Tensors out, const Opts& opts, Begin&& begin,
                     bool receives = true);
  /// The same of one tensor: `begin(inner, out, opts)`, which reduces it, and `begin(inner, given)`, which
  /// only moves it.
  template <class Opts, class Begin>
  Work reduce_one(const Call& call, const Tensors& tensors, const Opts& opts, Begin&& begin,
                  bool receives = true);
  template <class Begin>
  Work move_one(const Call& call, const Tensors& tensors, Begin&& begin);
  /// Ours over the work of a library that orders streams itself; none over none.
  Work shared(const Call& call, at::TensorList outputs, Work inner);
  /// `finish`, if any, runs on the results.
  Work run_on_host(const Call& call, Tensors outputs, Start start, Finish finish);
  Work start_in_order(c10::intrusive_ptr<BegunWork> work, Start start);
  Work all_to_all_on_host(const Call& call, const Tensors& outputs, const Tensors& inputs,
                          const c10d::AllToAllOptions& opts);
  /// Returns when a call that has been queued may start; throws where it may not.
  void proceed(const Call& call);

  /// Of a collective of several tensors: lent where the library enqueues before it returns and keeps
  /// nothing; held where gloo begins later, and where the call is asynchronous or in a group.
  Aliases aliases_for(bool asynchronous) const;
  /// Aliases for what only moves elements: of a tensor, a list of them, or lists.
  template <class Given>
  auto movable(Aliases& aliases, const Given& given) const;
  /// `aliases` in a form whose shapes do not matter.
  Tensors shapeless(Tensors aliases) const;

  c10::intrusive_ptr<c10d::Backend> inner_;
  const bool on_host_;
  StartQueue collectives_, messages_;
};

}  // namespace tefl::ccl
