#include "ccl/alias_backend.h"
#include "ccl/host_form.h"
#include "ccl/packing.h"

namespace tefl::ccl {
namespace {

using c10d::OpType;

// `opts` with the reduction that the inner library is to do.
template <class Options>
Options with(const Options& opts, const Reduction& how) {
  Options inner = opts;
  inner.reduceOp = how.inner();
  return inner;
}

}  // namespace

template <class Begin>
AliasBackend::Work AliasBackend::run(const Call& call, Tensors outputs, Begin start, Finish finish) {
  if (on_host_) return run_on_host(call, std::move(outputs), std::move(start), std::move(finish));
  TORCH_INTERNAL_ASSERT(!finish, "a library of a device other than the host is to do all of ", call.name);
  return shared(call, std::move(outputs), start());
}

template <class Begin>
AliasBackend::Work AliasBackend::run_reduction(const Call& call, Tensors outputs, const Tensors& results,
                                               const Reduction& how, Begin start) {
  if (!how.scales()) return run(call, std::move(outputs), std::move(start));
  auto finish = [results = Tensors(results), how]() mutable { how.scale(results); };
  return run(call, std::move(outputs), std::move(start), std::move(finish));
}

at::Tensor AliasBackend::movable(const at::Tensor& given) const {
  return on_host_ ? as_movable(alias_of(given)) : alias_of(given);
}

template <class Given>
Given AliasBackend::movable(const Given& given) const {
  return on_host_ ? as_movable(aliases_of(given)) : aliases_of(given);
}

Tensors AliasBackend::shapeless(Tensors aliases) const {
  if (on_host_) return without_shape(std::move(aliases));
  return aliases;
}

// ----------------------------------------------------------------------------------------- reductions --

AliasBackend::Work AliasBackend::begin_all_reduce(const Call& call, Tensors& tensors,
                                                  const c10d::AllreduceOptions& opts) {
  const auto how = reduction(opts.reduceOp);
  auto aliases = aliases_of(tensors);
  auto start = [inner = inner_, aliases, opts = with(opts, how)]() mutable {
    return inner->allreduce(aliases, opts);
  };
  return run_reduction(call, tensors, aliases, how, std::move(start));
}

AliasBackend::Work AliasBackend::begin_all_reduce_coalesced(const Call& call, Tensors& tensors,
                                                            const c10d::AllreduceCoalescedOptions& opts) {
  const auto how = reduction(opts.reduceOp);
  auto aliases = aliases_of(tensors);
  auto start = [inner = inner_, aliases, opts = with(opts, how)]() mutable {
    return inner->allreduce_coalesced(aliases, opts);
  };
  return run_reduction(call, tensors, aliases, how, std::move(start));
}

// What the other ranks' tensors hold afterwards is the library's affair: gloo leaves sums of some ranks in
// them, NCCL what was there. To spare them under gloo would take a copy, and half as much time again.
AliasBackend::Work AliasBackend::begin_reduce(const Call& call, Tensors& tensors,
                                              const c10d::ReduceOptions& opts) {
  const auto how = reduction(opts.reduceOp);
  auto aliases = aliases_of(tensors);
  auto start = [inner = inner_, aliases, opts = with(opts, how)]() mutable {
    return inner->reduce(aliases, opts);
  };
  const bool receives = getRank() == opts.rootRank;
  return run_reduction(call, tensors, receives ? aliases : Tensors{}, how, std::move(start));
}

AliasBackend::Work AliasBackend::begin_reduce_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                                                      const c10d::ReduceScatterOptions& opts) {
  const auto how = reduction(opts.reduceOp);
  auto out = aliases_of(outputs);
  auto start = [inner = inner_, out, in = aliases_of(inputs), opts = with(opts, how)]() mutable {
    return inner->reduce_scatter(out, in, opts);
  };
  return run_reduction(call, outputs, out, how, std::move(start));
}

AliasBackend::Work AliasBackend::begin_reduce_scatter_from(const Call& call, Tensors outputs, Tensors inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  const auto how = reduction(opts.reduceOp);
  auto out = shapeless(aliases_of(outputs));
  auto start = [inner = inner_, out, in = shapeless(aliases_of(inputs)), opts = with(opts, how)]() mutable {
    if (out.size() == 1) return inner->_reduce_scatter_base(out[0], in[0], opts);
    return inner->reduce_scatter_tensor_coalesced(out, in, opts);
  };
  return run_reduction(call, std::move(outputs), out, how, std::move(start));
}

// -------------------------------------------------------------------------------------------- gathers --

AliasBackend::Work AliasBackend::begin_all_gather(const Call& call, Lists& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& opts) {
  auto start = [inner = inner_, out = movable(outputs), in = movable(inputs), opts]() mutable {
    return inner->allgather(out, in, opts);
  };
  return run(call, flat(outputs), std::move(start));
}

AliasBackend::Work AliasBackend::begin_all_gather_coalesced(const Call& call, Lists& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& opts) {
  auto start = [inner = inner_, out = movable(outputs), in = movable(inputs), opts]() mutable {
    return inner->allgather_coalesced(out, in, opts);
  };
  return run(call, flat(outputs), std::move(start));
}

AliasBackend::Work AliasBackend::begin_all_gather_into(const Call& call, Tensors outputs, Tensors inputs,
                                                       const c10d::AllgatherOptions& opts) {
  auto out = movable(outputs), in = movable(inputs);
  // Gloo wants shapes that fit, of one number or of rows to stack they do not; what is transposed it copies.
  if (are_contiguous(outputs) && are_contiguous(inputs)) {
    out = shapeless(std::move(out));
    in = shapeless(std::move(in));
  }
  auto start = [inner = inner_, out = std::move(out), in = std::move(in), opts]() mutable {
    if (out.size() == 1) return inner->_allgather_base(out[0], in[0], opts);
    return inner->allgather_into_tensor_coalesced(out, in, opts);
  };
  return run(call, std::move(outputs), std::move(start));
}

AliasBackend::Work AliasBackend::begin_gather(const Call& call, Lists& outputs, Tensors& inputs,
                                              const c10d::GatherOptions& opts) {
  auto start = [inner = inner_, out = movable(outputs), in = movable(inputs), opts]() mutable {
    return inner->gather(out, in, opts);
  };
  return run(call, flat(outputs), std::move(start));
}

// ------------------------------------------------------------------- from one to all, from all to all --

AliasBackend::Work AliasBackend::begin_broadcast(const Call& call, Tensors& tensors,
                                                 const c10d::BroadcastOptions& opts) {
  auto start = [inner = inner_, aliases = movable(tensors), opts]() mutable {
    return inner->broadcast(aliases, opts);
  };
  return run(call, tensors, std::move(start));
}

AliasBackend::Work AliasBackend::begin_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                                               const c10d::ScatterOptions& opts) {
  auto start = [inner = inner_, out = movable(outputs), in = movable(inputs), opts]() mutable {
    return inner->scatter(out, in, opts);
  };
  return run(call, outputs, std::move(start));
}

// Gloo wants parts of one size; in one piece they may have any.
AliasBackend::Work AliasBackend::all_to_all_on_host(const Call& call, const Tensors& outputs,
                                                    const Tensors& inputs,
                                                    const c10d::AllToAllOptions& opts) {
  auto out = movable(outputs), in = movable(inputs);
  auto received = std::make_shared<at::Tensor>();
  auto start = [inner = inner_, received, out, in, opts]() mutable {
    auto sent = packed(in);
    auto output_counts = counts_of(out), input_counts = counts_of(in);
    *received = room_for(out);
    return inner->alltoall_base(*received, sent, output_counts, input_counts, opts);
  };
  auto finish = [received, out] { unpack(*received, out); };
  return run(call, outputs, std::move(start), finish);
}

AliasBackend::Work AliasBackend::begin_all_to_all(const Call& call, Tensors& outputs, Tensors& inputs,
                                                  const c10d::AllToAllOptions& opts) {
  if (on_host_) return all_to_all_on_host(call, outputs, inputs, opts);
  auto start = [inner = inner_, out = aliases_of(outputs), in = aliases_of(inputs), opts]() mutable {
    return inner->alltoall(out, in, opts);
  };
  return run(call, outputs, std::move(start));
}

AliasBackend::Work AliasBackend::begin_all_to_all_single(const Call& call, at::Tensor& output,
                                                         at::Tensor& input,
                                                         std::vector<int64_t>& output_splits,
                                                         std::vector<int64_t>& input_splits,
                                                         const c10d::AllToAllOptions& opts) {
  auto start = [inner = inner_, out = movable(output), in = movable(input), output_splits, input_splits,
                opts]() mutable { return inner->alltoall_base(out, in, output_splits, input_splits, opts); };
  return run(call, {output}, std::move(start));
}

// ------------------------------------------------------------------------ point to point, and nothing --

AliasBackend::Work AliasBackend::begin_send(const Call& call, Tensors& tensors, int destination, int tag) {
  auto start = [inner = inner_, aliases = movable(tensors), destination, tag]() mutable {
    return inner->send(aliases, destination, tag);
  };
  return run(call, tensors, std::move(start));
}

AliasBackend::Work AliasBackend::begin_recv(const Call& call, Tensors& tensors, int source, int tag) {
  auto start = [inner = inner_, aliases = movable(tensors), source, tag]() mutable {
    return inner->recv(aliases, source, tag);
  };
  return run(call, tensors, std::move(start));
}

AliasBackend::Work AliasBackend::begin_recv_from_any(const Call& call, Tensors& tensors, int tag) {
  auto start = [inner = inner_, aliases = movable(tensors), tag]() mutable {
    return inner->recvAnysource(aliases, tag);
  };
  return run(call, tensors, std::move(start));
}

AliasBackend::Work AliasBackend::begin_barrier(const Call& call, const c10d::BarrierOptions& opts) {
  auto inner_opts = opts;
  inner_opts.device.reset();
  if (!on_host_ && inner_opts.device_ids.empty()) inner_opts.device_ids = {call.device.index()};
  auto start = [inner = inner_, inner_opts]() mutable { return inner->barrier(inner_opts); };
  return run(call, {}, std::move(start));
}

}  // namespace tefl::ccl
