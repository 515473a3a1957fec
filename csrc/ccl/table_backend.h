// A process group for our device over the provider's own collectives, the CCL table of tefl_provider.h.
#pragma once

#include <map>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ccl/ledger.h"
#include "ccl/reduction.h"
#include "ccl/tensors.h"
#include "ccl/watchdog.h"

namespace tefl::ccl {

/// Collectives run in a stream of their own, behind the current one at the time of the call; each peer has a
/// stream for what is sent and one for what is received. The communicator is made by the first call.
class TableBackend final : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  TableBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return "tefl"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  Work endCoalescing() override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  void abort() override { watchdog_.abort("the process group was aborted"); }

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
  Work barrier(const c10d::BarrierOptions& opts) override;

 private:
  using Timeout = std::chrono::milliseconds;
  /// What a call works with: the communicator and the stream, as the table takes them.
  struct Lane {
    std::shared_ptr<Communicator> communicator;
    c10::Stream stream;
    tefl_comm comm() const { return communicator->get(); }
    tefl_stream native() const;
  };
  using Body = std::function<void(const Lane&, Tensors& kept)>;
  using Counts = std::vector<uint64_t>;  // bytes, for each rank

  Call announce(c10d::OpType type, const char* name, const Tensors& measured, const std::string& detail = "");
  /// Runs `body` in the lane of the call, behind the current stream. `kept` grows by what it makes.
  Work run(Call call, const Tensors& outputs, const Tensors& inputs, Timeout timeout, const Body& body);
  Work exchange(Call call, const Tensors& outputs, const Tensors& inputs, const Counts& out, const Counts& in,
                Timeout timeout);
  Lane lane(const Call& call, c10::Device device, int peer, bool receives);

  Work reduce_all(Call call, Tensors& tensors, const c10d::ReduceOp& op, Timeout timeout);
  Work gather_all(Call call, const Tensors& outputs, const Tensors& inputs, Timeout timeout);
  Work reduce_parts(Call call, const Tensors& outputs, const Tensors& inputs, const c10d::ReduceOp& op,
                    Timeout timeout);
  Work message(Call call, Tensors& tensors, int peer, bool receives);

  const c10::intrusive_ptr<c10d::Store> store_;
  const Timeout timeout_;
  Ledger ledger_;
  std::atomic<uint64_t> calls_{0}, messages_{0};
  std::map<c10::DeviceIndex, std::shared_ptr<Communicator>> communicators_;
  std::map<std::tuple<c10::DeviceIndex, int, bool>, c10::Stream> streams_;  // peer -1: the collectives
  bool coalescing_ = false;
  std::vector<c10::intrusive_ptr<StreamWork>> coalesced_;
  Watchdog watchdog_;  // last, so that its thread ends first
};

}  // namespace tefl::ccl
