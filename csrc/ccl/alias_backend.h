// A process group for our device over another one for the alias device: gloo for the CPU, NCCL for a GPU.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ccl/ledger.h"
#include "ccl/reduction.h"
#include "ccl/start_queue.h"
#include "ccl/tensors.h"

namespace tefl::ccl {

/// Every collective gets zero-copy twins of its tensors and is begun, on the inner group, after what the
/// current stream holds. Any c10d backend for the alias device will do; what it lacks raises its own error.
class AliasBackend final : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  AliasBackend(c10::intrusive_ptr<c10d::Backend> inner, c10::intrusive_ptr<c10d::Store> store,
               std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return "tefl"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  Work endCoalescing() override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  Work allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  Work allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& opts) override;
  Work reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& opts) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& opts) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& opts) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  Work gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  Work scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) override;
  Work send(Tensors& tensors, int destination, int tag) override;
  Work recv(Tensors& tensors, int source, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  Work barrier(const c10d::BarrierOptions& opts) override;

 private:
  using Start = std::function<Work()>;
  using Finish = std::function<void()>;

  /// The call of a collective whose size is that of `measured`; compared with the other ranks'.
  Call announce(c10d::OpType type, const char* name, const Tensors& measured, const std::string& detail = "");
  Call point_to_point(c10d::OpType type, const char* name, const Tensors& tensors);
  Reduction reduction(const c10d::ReduceOp& op) const;

  /// Begins `start` after the current stream of the tensors' device; `finish` runs on the results.
  Work run(Call call, Tensors outputs, const Tensors& inputs, Start start, Finish finish = nullptr);
  Work run_reduction(Call call, Tensors outputs, const Tensors& inputs, Tensors results, const Reduction& how,
                     Start start);
  Work run_by_host(Call call, Tensors outputs, c10::Stream after, Start start, Finish finish);
  Work run_waited(Call call, Tensors outputs, c10::Stream after, Start start, Finish finish);
  Work alltoall_on_host(Call call, const Tensors& outputs, const Tensors& inputs,
                        const c10d::AllToAllOptions& opts);
  Work kept(Work work);
  /// Twins for what only moves elements, a tensor list or lists of them; twins whose shape does not matter.
  template <class Given>
  Given movable(const Given& given) const;
  Tensors shapeless(const Tensors& tensors) const;

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::shared_ptr<Ledger> ledger_;  // work that is not done yet keeps it, too
  const bool on_host_;
  std::atomic<uint64_t> calls_{0}, messages_{0};
  bool coalescing_ = false;
  std::vector<Work> coalesced_;
  StartQueue queue_;  // last, so that its thread ends first
};

}  // namespace tefl::ccl
