#include "ccl/device_backend.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "ccl/arguments.h"
#include "ccl/reduction.h"
#include "ccl/sparse_sum.h"
#include "ccl/work.h"
#include "device/provider.h"
#include "device/streams.h"

namespace tefl::ccl {

using c10d::OpType;

DeviceBackend::DeviceBackend(int rank, int size, const c10::intrusive_ptr<c10d::Store>& store,
                             Timeout timeout)
    : c10d::Backend(rank, size),
      ledger_(std::make_shared<Ledger>(store, timeout)),
      comparer_(ledger_, [this](const std::string& reason) { give_up(reason); }) {}

// ------------------------------------------------------------------------------- what all calls do first --

Call DeviceBackend::named(OpType type, const char* name) const {
  Call call{type, name};
  call.rank = getRank();
  call.size = getSize();
  return call;
}

Call DeviceBackend::rooted(OpType type, const char* name, int64_t root) const {
  auto call = named(type, name);
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), name, ": the root is rank ", root, ", wants one of 0 to ",
                    getSize() - 1, " in the group");
  call.root = root;
  return call;
}

Call DeviceBackend::reducing(OpType type, const char* name, const c10d::ReduceOp& op,
                             at::TensorList tensors) const {
  auto call = named(type, name);
  set_reduction(call, op, tensors);
  return call;
}

void DeviceBackend::set_reduction(Call& call, const c10d::ReduceOp& op, at::TensorList tensors) {
  for (const auto& tensor : tensors) require_reducible(call.name, op, tensor.scalar_type());
  call.reduction = name_of(op);
}

Call DeviceBackend::message(OpType type, const char* name, std::optional<int> peer) const {
  auto call = named(type, name);
  TORCH_CHECK_VALUE(!peer || (*peer >= 0 && *peer < getSize() && *peer != getRank()), name,
                    ": the peer is rank ", *peer, ", wants another rank of 0 to ", getSize() - 1);
  return call;
}

// What is refused is not counted: a rank may put its arguments right and call again.
void DeviceBackend::admit(Call& call, at::TensorList measured, std::initializer_list<at::TensorList> all) {
  device::ensure_initialized();
  call.device = device_of(call, all);
  if (call.reduction == nullptr) require_movable(call, all);
  measure(call, measured);
  enter(call);
}

// Of most tensors one look tells all that is asked.
void DeviceBackend::admit_one(Call& call, const Tensors& tensors) {
  require_one(call, tensors.size());
  const at::Tensor& tensor = tensors.front();
  if (C10_UNLIKELY(!is_usual(tensor))) {
    if (call.is_message()) require_contiguous(call, tensors);
    return admit(call, tensors, {tensors});
  }
  device::ensure_initialized();
  if (call.reduction == nullptr) require_movable(call, {tensors});
  call.device = tensor.device();
  call.dtype = tensor.scalar_type();
  call.numel = tensor.numel();
  enter(call);
}

void DeviceBackend::enter(Call& call) {
  call.number = call.is_message() ? ++messages_ : ++calls_;
  require_sound(call);
  if (!call.is_message() && ledger_->announce(call)) compare(call);
}

void DeviceBackend::admit_parts(Call& call, const char* what, const Tensors& parts, const Tensors& own) {
  const bool may_differ = takes_parts_of_different_sizes();
  if (may_differ) device_of(call, {parts, own});  // a nested tensor has no sizes to ask for
  const bool differ = may_differ && !are_of_one_size(parts);
  if (differ) {
    require_own_part(call, parts, own.front(), what);
    require_contiguous(call, parts);  // NCCL's group takes these as they lie
  } else {
    require_parts(call, parts, own.front(), what);
  }
  admit(call, differ ? parts : own, {parts, own});
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
    has_failed_ = true;
  }
  ledger_->close(reason);
  abort_beneath(reason);
}

std::string DeviceBackend::failure() const {
  if (C10_LIKELY(!has_failed_)) return {};
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

void DeviceBackend::stop_comparing() { comparer_.stop(); }

// ------------------------------------------------------------------------------------- several as one --

Call DeviceBackend::coalesced_call() const {
  auto call = named(OpType::COALESCED, "coalesced calls");
  call.number = calls_;
  return call;
}

void DeviceBackend::startCoalescing() {
  leave_group();
  begin_group();
  coalescing_ = true;
}

// Torch does not end a group whose calls raise: its works go to nobody.
void DeviceBackend::leave_group() {
  if (coalescing_) endCoalescing();
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
  if (tensors.size() == 1 && tensors.front().is_sparse()) return all_reduce_sparse(tensors.front(), opts);
  auto call = reducing(OpType::ALLREDUCE, "all_reduce", opts.reduceOp, tensors);
  call.in_memory_order = true;
  admit_one(call, tensors);
  return begin_all_reduce(call, tensors, opts);
}

// The ranks' parts differ in size and are gathered first, for which the host waits. The dispatcher has seen
// to autograd; the operators called here are not to.
DeviceBackend::Work DeviceBackend::all_reduce_sparse(at::Tensor& tensor, const c10d::AllreduceOptions& opts) {
  auto call = reducing(OpType::ALLREDUCE, "all_reduce", opts.reduceOp, tensor);
  const Reduction how(opts.reduceOp, getSize());
  TORCH_CHECK_VALUE(how.inner() == c10d::ReduceOp::SUM, call.name, ": got a sparse tensor to reduce by ",
                    call.reduction, "; there are SUM and AVG of those: pass .to_dense()");
  TORCH_CHECK_VALUE(!coalescing_, call.name, ": got a sparse tensor in a group of calls, which are begun ",
                    "together; call it by itself");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto own = tensor.coalesce();
  call.amounts_differ = true;
  call.layout = c10::str(", sparse, of ", tensor.scalar_type(), " and sizes ", tensor.sizes(), ", ",
                         tensor.sparse_dim(), " of them sparse");
  const auto values = own.values().contiguous();
  admit(call, {}, {values});
  if (std::exchange(call.is_open, false)) compare_within_grace(call);
  call.dtype = tensor.scalar_type();
  call.numel = values.numel();
  Tensors results{sum_of_all_ranks(*this, call, own, opts.timeout)};
  how.scale(results);
  tensor.copy_(results.front());
  device::wait_for_current_stream(call.device.index());
  return c10::make_intrusive<DoneWork>(call, Tensors{tensor}, ledger_);
}

DeviceBackend::Work DeviceBackend::allreduce_coalesced(Tensors& tensors,
                                                       const c10d::AllreduceCoalescedOptions& opts) {
  auto call = reducing(OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", opts.reduceOp, tensors);
  call.in_memory_order = true;
  admit(call, tensors, {tensors});
  return begin_all_reduce_coalesced(call, tensors, opts);
}

DeviceBackend::Work DeviceBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  auto call = rooted(OpType::REDUCE, "reduce", opts.rootRank);
  set_reduction(call, opts.reduceOp, tensors);
  call.in_memory_order = true;
  admit_one(call, tensors);
  return begin_reduce(call, tensors, opts);
}

DeviceBackend::Work DeviceBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                  const c10d::ReduceScatterOptions& opts) {
  auto call = reducing(OpType::REDUCE_SCATTER, "reduce_scatter", opts.reduceOp, outputs);
  require_one(call, outputs.size());
  require_one(call, inputs.size());
  admit_parts(call, "inputs", inputs.front(), outputs);
  return begin_reduce_scatter(call, outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::ReduceScatterOptions& opts) {
  auto call = reducing(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", opts.reduceOp, output);
  require_multiple(call, "input", input, "output", output);
  admit(call, output, {output, input});
  return begin_reduce_scatter_from(call, output, input, opts);
}

DeviceBackend::Work DeviceBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                   const c10d::ReduceScatterOptions& opts) {
  auto call =
      reducing(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor_coalesced", opts.reduceOp, outputs);
  require_multiples(call, "input", inputs, "output", outputs);
  admit(call, outputs, {outputs, inputs});
  return begin_reduce_scatter_from(call, outputs, inputs, opts);
}

// -------------------------------------------------------------------------------------------- gathers --

DeviceBackend::Work DeviceBackend::allgather(Lists& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& opts) {
  auto call = named(OpType::ALLGATHER, "all_gather");
  require_one(call, inputs.size());
  require_one(call, outputs.size());
  admit_parts(call, "outputs", outputs.front(), inputs);
  return begin_all_gather(call, outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                       const c10d::AllgatherOptions& opts) {
  auto call = named(OpType::ALLGATHER_COALESCED, "all_gather_coalesced");
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(getSize()), call.name, ": got ", outputs.size(),
                    " lists of outputs, wants one for each of ", getSize(), " ranks");
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    TORCH_CHECK_VALUE(outputs[rank].size() == inputs.size(), call.name, ": got ", outputs[rank].size(),
                      " outputs for rank ", rank, ", wants as many as inputs, ", inputs.size());
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    require_parts(call, of_each_rank(outputs, i), inputs[i], "outputs");
  admit(call, inputs, {flat(outputs), inputs});
  return begin_all_gather_coalesced(call, outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::AllgatherOptions& opts) {
  auto call = named(OpType::_ALLGATHER_BASE, "all_gather_into_tensor");
  require_multiple(call, "output", output, "input", input);
  admit(call, input, {output, input});
  return begin_all_gather_into(call, output, input, opts);
}

DeviceBackend::Work DeviceBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                   const c10d::AllgatherOptions& opts) {
  auto call = named(OpType::_ALLGATHER_BASE, "all_gather_into_tensor_coalesced");
  require_multiples(call, "output", outputs, "input", inputs);
  admit(call, inputs, {outputs, inputs});
  return begin_all_gather_into(call, outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  auto call = rooted(OpType::GATHER, "gather", opts.rootRank);
  require_one(call, inputs.size());
  if (getRank() == opts.rootRank) require_parts(call, flat(outputs), inputs.front(), "outputs");
  admit(call, inputs, {flat(outputs), inputs});
  return begin_gather(call, outputs, inputs, opts);
}

// ------------------------------------------------------------------- from one to all, from all to all --

DeviceBackend::Work DeviceBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  auto call = rooted(OpType::BROADCAST, "broadcast", opts.rootRank);
  call.in_memory_order = true;
  admit_one(call, tensors);
  return begin_broadcast(call, tensors, opts);
}

DeviceBackend::Work DeviceBackend::scatter(Tensors& outputs, Lists& inputs,
                                           const c10d::ScatterOptions& opts) {
  auto call = rooted(OpType::SCATTER, "scatter", opts.rootRank);
  require_one(call, outputs.size());
  if (getRank() == opts.rootRank) require_parts(call, flat(inputs), outputs.front(), "inputs");
  admit(call, outputs, {outputs, flat(inputs)});
  return begin_scatter(call, outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                            const c10d::AllToAllOptions& opts) {
  auto call = named(OpType::ALLTOALL, "all_to_all");
  call.amounts_differ = true;
  require_one_each(call, outputs, "outputs");
  require_one_each(call, inputs, "inputs");
  admit(call, inputs, {outputs, inputs});
  return begin_all_to_all(call, outputs, inputs, opts);
}

DeviceBackend::Work DeviceBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<int64_t>& output_splits,
                                                 std::vector<int64_t>& input_splits,
                                                 const c10d::AllToAllOptions& opts) {
  auto call = named(OpType::ALLTOALL_BASE, "all_to_all_single");
  call.amounts_differ = true;
  require_splits(call, "output", output, output_splits);
  require_splits(call, "input", input, input_splits);
  admit(call, input, {output, input});
  return begin_all_to_all_single(call, output, input, output_splits, input_splits, opts);
}

// ------------------------------------------------------------------------ point to point, and nothing --

DeviceBackend::Work DeviceBackend::send(Tensors& tensors, int destination, int tag) {
  auto call = message(OpType::SEND, "send", destination);
  admit_one(call, tensors);
  return begin_send(call, tensors, destination, tag);
}

DeviceBackend::Work DeviceBackend::recv(Tensors& tensors, int source, int tag) {
  auto call = message(OpType::RECV, "recv", source);
  admit_one(call, tensors);
  return begin_recv(call, tensors, source, tag);
}

DeviceBackend::Work DeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  auto call = message(OpType::RECVANYSOURCE, "recv", std::nullopt);
  admit_one(call, tensors);
  return begin_recv_from_any(call, tensors, tag);
}

DeviceBackend::Work DeviceBackend::barrier(const c10d::BarrierOptions& opts) {
  auto call = named(OpType::BARRIER, "barrier");
  admit(call, {}, {});
  return begin_barrier(call, opts);
}

}  // namespace tefl::ccl
