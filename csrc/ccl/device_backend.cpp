#include "ccl/device_backend.h"

#include "ccl/packing.h"
#include "device/provider.h"

namespace tefl::ccl {

using c10d::OpType;

DeviceBackend::DeviceBackend(int rank, int size, const c10::intrusive_ptr<c10d::Store>& store,
                             Timeout timeout)
    : c10d::Backend(rank, size),
      ledger_(std::make_shared<Ledger>(store, timeout)),
      comparer_(ledger_, [this](const std::string& reason) { give_up(reason); }) {}

// ------------------------------------------------------------------------------- what all calls do first --

// What is refused here is not counted: a rank may put its arguments right and call again.
Call DeviceBackend::checked(Call call, const Tensors& measured, std::initializer_list<at::TensorList> all) {
  call.rank = getRank();
  call.size = getSize();
  measure(call, measured);
  device::ensure_initialized();
  call.device = device_of(call, all);
  call.number = call.is_message() ? ++messages_ : ++calls_;
  require_sound(call);
  if (!call.is_message() && ledger_->announce(call)) compare(call);
  return call;
}

void DeviceBackend::require_sound(const Call& call) const {
  const auto failed = failure();
  if (C10_UNLIKELY(!failed.empty())) fail(call, "the process group has failed before: " + failed);
}

void DeviceBackend::compare_within_grace(const Call& call) {
  or_give_up([&] {
    // Once behind, it is behind with every call: held up once for all of them.
    const auto patience = comparer_.behind() ? Timeout(0) : std::min(kGrace, ledger_->timeout());
    if (!ledger_->agrees_within(call, patience)) comparer_.add(call);
  });
}

void DeviceBackend::give_up(const std::string& reason) {
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    if (failure_.empty()) failure_ = reason;
  }
  ledger_->close(reason);
  abort_beneath(reason);
}

std::string DeviceBackend::failure() const {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

void DeviceBackend::stop_comparing() {
  ledger_->close("the process group was destroyed");
  comparer_.stop();
}

// ------------------------------------------------------------------------------------- several as one --

Call DeviceBackend::coalesced_call() const {
  Call call{OpType::COALESCED, "coalesced calls"};
  call.number = calls_;
  call.rank = getRank();
  call.size = getSize();
  return call;
}

void DeviceBackend::startCoalescing() {
  coalescing_ = true;
  begin_group(coalesced_call());
}

DeviceBackend::Work DeviceBackend::endCoalescing() {
  coalescing_ = false;
  return end_group(coalesced_call(), std::exchange(coalesced_, {}));
}

DeviceBackend::Work DeviceBackend::kept(Work work) {
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

// ----------------------------------------------------------------------------------------- reductions --

DeviceBackend::Work DeviceBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const auto call = reducing(OpType::ALLREDUCE, "all_reduce", opts.reduceOp);
  return begin_all_reduce(checked(call, tensors, {tensors}), tensors, opts);
}

DeviceBackend::Work DeviceBackend::allreduce_coalesced(Tensors& tensors,
                                                       const c10d::AllreduceCoalescedOptions& opts) {
  const auto call = reducing(OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", opts.reduceOp);
  return begin_all_reduce_coalesced(checked(call, tensors, {tensors}), tensors, opts);
}

DeviceBackend::Work DeviceBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const auto call = reducing(OpType::REDUCE, "reduce", opts.reduceOp, opts.rootRank);
  return begin_reduce(checked(call, tensors, {tensors}), tensors, opts);
}

DeviceBackend::Work DeviceBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                  const c10d::ReduceScatterOptions& opts) {
  const auto call = reducing(OpType::REDUCE_SCATTER, "reduce_scatter", opts.reduceOp);
  return begin_reduce_scatter(checked(call, outputs, {outputs, flat(inputs)}), outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::ReduceScatterOptions& opts) {
  const auto call = reducing(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", opts.reduceOp);
  return begin_reduce_scatter_from(checked(call, {output}, {output, input}), {output}, {input}, opts);
}

DeviceBackend::Work DeviceBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                   const c10d::ReduceScatterOptions& opts) {
  const auto call = reducing(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor_coalesced", opts.reduceOp);
  return begin_reduce_scatter_from(checked(call, outputs, {outputs, inputs}), outputs, inputs, opts);
}

// -------------------------------------------------------------------------------------------- gathers --

DeviceBackend::Work DeviceBackend::allgather(Lists& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& opts) {
  Call call{OpType::ALLGATHER, "all_gather"};
  call.amounts_differ = gathers_different_amounts();
  return begin_all_gather(checked(call, inputs, {flat(outputs), inputs}), outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                       const c10d::AllgatherOptions& opts) {
  const Call call{OpType::ALLGATHER_COALESCED, "all_gather_coalesced"};
  return begin_all_gather_coalesced(checked(call, inputs, {flat(outputs), inputs}), outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::AllgatherOptions& opts) {
  const Call call{OpType::_ALLGATHER_BASE, "all_gather_into_tensor"};
  return begin_all_gather_into(checked(call, {input}, {output, input}), {output}, {input}, opts);
}

DeviceBackend::Work DeviceBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                   const c10d::AllgatherOptions& opts) {
  const Call call{OpType::_ALLGATHER_BASE, "all_gather_into_tensor_coalesced"};
  return begin_all_gather_into(checked(call, inputs, {outputs, inputs}), outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const auto call = rooted(OpType::GATHER, "gather", opts.rootRank);
  return begin_gather(checked(call, inputs, {flat(outputs), inputs}), outputs, inputs, opts);
}

// ------------------------------------------------------------------- from one to all, from all to all --

DeviceBackend::Work DeviceBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const auto call = rooted(OpType::BROADCAST, "broadcast", opts.rootRank);
  return begin_broadcast(checked(call, tensors, {tensors}), tensors, opts);
}

DeviceBackend::Work DeviceBackend::scatter(Tensors& outputs, Lists& inputs,
                                           const c10d::ScatterOptions& opts) {
  const auto call = rooted(OpType::SCATTER, "scatter", opts.rootRank);
  return begin_scatter(checked(call, outputs, {outputs, flat(inputs)}), outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                            const c10d::AllToAllOptions& opts) {
  Call call{OpType::ALLTOALL, "all_to_all"};
  call.amounts_differ = true;
  call.size = getSize();
  require_one_each(call, outputs, "outputs");
  require_one_each(call, inputs, "inputs");
  return begin_all_to_all(checked(call, inputs, {outputs, inputs}), outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<int64_t>& output_splits,
                                                 std::vector<int64_t>& input_splits,
                                                 const c10d::AllToAllOptions& opts) {
  Call call{OpType::ALLTOALL_BASE, "all_to_all_single"};
  call.amounts_differ = true;
  return begin_all_to_all_single(checked(call, {input}, {output, input}), output, input, output_splits,
                                 input_splits, opts);
}

// ------------------------------------------------------------------------ point to point, and nothing --

DeviceBackend::Work DeviceBackend::send(Tensors& tensors, int destination, int tag) {
  return begin_send(checked({OpType::SEND, "send"}, tensors, {tensors}), tensors, destination, tag);
}

DeviceBackend::Work DeviceBackend::recv(Tensors& tensors, int source, int tag) {
  return begin_recv(checked({OpType::RECV, "recv"}, tensors, {tensors}), tensors, source, tag);
}

DeviceBackend::Work DeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  return begin_recv_from_any(checked({OpType::RECVANYSOURCE, "recv"}, tensors, {tensors}), tensors, tag);
}

DeviceBackend::Work DeviceBackend::barrier(const c10d::BarrierOptions& opts) {
  return begin_barrier(checked({OpType::BARRIER, "barrier"}, {}, {}), opts);
}

}  // namespace tefl::ccl
