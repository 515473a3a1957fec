// A process group for our device over the provider's own collectives, the CCL table of tefl_provider.h.
#pragma once

#include <map>
#include <memory>

#include "ccl/device_backend.h"
#include "ccl/reduction.h"
#include "ccl/watchdog.h"

namespace tefl::ccl {

/// Collectives run in a stream of their own, behind the current one at the time of the call; each peer has a
/// stream for what is sent and one for what is received. The communicator is made by the first call.
class TableBackend final : public DeviceBackend {
 public:
  TableBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Timeout timeout);
  ~TableBackend() override;

  /// Waits for what is under way, which ends in time; later calls fail.
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

  Work end_group(const Call& call, std::vector<Work> works) override;
  void abort_beneath(const std::string& reason) override;
  std::string failure() const override;

 private:
  /// What a call works with: the communicator and the stream, as the table takes them.
  struct Lane {
    std::shared_ptr<Communicator> communicator;
    c10::Stream stream;
    tefl_comm comm() const { return communicator->get(); }
    tefl_stream native() const;
  };
  struct Message {
    c10::intrusive_ptr<StreamWork> work;
    Lane lane;
    at::Tensor tensor;
    int peer;
    bool receives;
    tefl_status enqueue() const;
  };
  using Body = std::function<void(const Lane&, Tensors& kept)>;
  using Counts = std::vector<uint64_t>;  // bytes, for each rank

  /// That of the call's device, made by its first call.
  std::shared_ptr<Communicator> communicator(const Call& call);
  /// The lane of the call, which is behind the current stream now.
  Lane lane(const Call& call, int peer, bool receives);
  /// Runs `body` in the lane of the call. `kept` grows by what it makes.
  Work run(const Call& call, at::TensorList outputs, at::TensorList inputs, Timeout timeout,
           const Body& body);
  void watch(const c10::intrusive_ptr<StreamWork>& work, Timeout timeout);
  Work reduce_all(const Call& call, Tensors& tensors, const c10d::ReduceOp& op, Timeout timeout);
  Work exchange(const Call& call, const Tensors& outputs, const Tensors& inputs, const Counts& out,
                const Counts& in, Timeout timeout);
  /// Every rank's `input` into `output`, in order; in a Body.
  void gather_one(const Call& call, const Lane& lane, const at::Tensor& input, const at::Tensor& output,
                  Tensors& kept);
  Work message(const Call& call, Tensors& tensors, int peer, bool receives);
  /// Messages of a group, as one piece of work.
  void enqueue(const Call& call, const std::vector<Message>& messages);

  /// A device's communicator. Its number, of the order of first use, is the same in all ranks.
  struct Place {
    size_t number = 0;
    std::shared_ptr<Communicator> communicator;
    std::mutex making;  // held by the call that makes it
  };

  std::mutex lanes_mutex_;  // of both maps: threads may share a group
  std::map<c10::DeviceIndex, Place> places_;
  std::map<std::tuple<c10::DeviceIndex, int, bool>, c10::Stream> streams_;  // peer -1: the collectives
  std::vector<Message> collected_;  // since a group of calls has begun
  Watchdog watchdog_;               // last, so that its thread ends first
};

}  // namespace tefl::ccl
