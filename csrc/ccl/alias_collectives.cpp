#include "ccl/alias_backend.h"
#include "ccl/arguments.h"
#include "ccl/host_form.h"
#include "ccl/lone_alias.h"
#include "ccl/packing.h"
#include "ccl/reduction.h"

namespace tefl::ccl {
namespace {

// `opts` with the reduction that the inner library is to do.
template <class Options>
Options with(const Options& opts, const Reduction& how) {
  Options inner = opts;
  inner.reduceOp = how.inner();
  return inner;
}

// Parts of different sizes PyTorch's group for NCCL moves as a group of calls, which it leaves open where it
// refuses one of them: no later call would start.
template <class Begin>
c10::intrusive_ptr<c10d::Work> begin_parts(c10d::Backend& inner, const Tensors& parts, const Begin& begin) {
  try {
    return begin();
  } catch (...) {
    if (!are_of_one_size(parts)) inner.endCoalescing();
    throw;
  }
}

}  // namespace

template <class Begin>
AliasBackend::Work AliasBackend::run(const Call& call, at::TensorList outputs, Begin&& begin) {
  if (!on_host_) return shared(call, outputs, begin(*inner_));
  return run_on_host(call, outputs.vec(), std::forward<Begin>(begin), nullptr);
}

template <class Opts, class Begin>
AliasBackend::Work AliasBackend::run_reduction(const Call& call, at::TensorList outputs, Tensors out,
                                               const Opts& opts, Begin&& begin, bool receives) {
  if (!on_host_) return shared(call, outputs, begin(*inner_, out, opts));
  const Reduction how(opts.reduceOp, getSize());
  Finish finish;
  if (how.scales() && receives) finish = [results = out, how]() mutable { how.scale(results); };
  auto start = [begin = std::forward<Begin>(begin), out = std::move(out),
                opts = with(opts, how)](c10d::Backend& inner) mutable { return begin(inner, out, opts); };
  return run_on_host(call, outputs.vec(), std::move(start), std::move(finish));
}

template <class Opts, class Begin>
AliasBackend::Work AliasBackend::reduce_one(const Call& call, const Tensors& tensors, const Opts& opts,
                                            Begin&& begin, bool receives) {
  if (!on_host_) {
    LoneAlias alias(tensors.front());
    return shared(call, tensors, begin(*inner_, alias.list(), opts));
  }
  Aliases aliases(AliasKind::kHeld);
  return run_reduction(call, tensors, aliases.of(tensors), opts, std::forward<Begin>(begin), receives);
}

template <class Begin>
AliasBackend::Work AliasBackend::move_one(const Call& call, const Tensors& tensors, Begin&& begin) {
  if (!on_host_) {
    LoneAlias alias(tensors.front());
    return shared(call, tensors, begin(*inner_, alias.list()));
  }
  Aliases aliases(AliasKind::kHeld);
  auto start = [begin = std::forward<Begin>(begin), given = as_movable(aliases.of(tensors))](
                   c10d::Backend& inner) mutable { return begin(inner, given); };
  return run_on_host(call, tensors, std::move(start), nullptr);
}

template <class Given>
auto AliasBackend::movable(Aliases& aliases, const Given& given) const {
  if (on_host_) return as_movable(aliases.of(given));
  return aliases.of(given);
}

Tensors AliasBackend::shapeless(Tensors aliases) const {
  if (on_host_) return without_shape(std::move(aliases));
  return aliases;
}

// ----------------------------------------------------------------------------------------- reductions --

AliasBackend::Work AliasBackend::begin_all_reduce(const Call& call, Tensors& tensors,
                                                  const c10d::AllreduceOptions& opts) {
  return reduce_one(call, tensors, opts, [](c10d::Backend& inner, Tensors& out, const auto& opts) {
    return inner.allreduce(out, opts);
  });
}

AliasBackend::Work AliasBackend::begin_all_reduce_coalesced(const Call& call, Tensors& tensors,
                                                            const c10d::AllreduceCoalescedOptions& opts) {
  auto aliases = aliases_for(opts.asyncOp);
  return run_reduction(
      call, tensors, aliases.of(tensors), opts,
      [](c10d::Backend& inner, auto& out, const auto& opts) { return inner.allreduce_coalesced(out, opts); });
}

// What the other ranks' tensors hold afterwards is the library's affair: gloo leaves sums of some ranks in
// them, NCCL what was there. To spare them under gloo would take a copy, and half as much time again.
AliasBackend::Work AliasBackend::begin_reduce(const Call& call, Tensors& tensors,
                                              const c10d::ReduceOptions& opts) {
  return reduce_one(
      call, tensors, opts,
      [](c10d::Backend& inner, Tensors& out, const auto& opts) { return inner.reduce(out, opts); },
      /*receives=*/getRank() == opts.rootRank);
}

AliasBackend::Work AliasBackend::begin_reduce_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                                                      const c10d::ReduceScatterOptions& opts) {
  auto aliases = aliases_for(opts.asyncOp);
  auto begin = [in = aliases.of(inputs)](c10d::Backend& inner, auto& out, const auto& opts) mutable {
    return begin_parts(inner, in.front(), [&] { return inner.reduce_scatter(out, in, opts); });
  };
  return run_reduction(call, outputs, aliases.of(outputs), opts, std::move(begin));
}

AliasBackend::Work AliasBackend::begin_reduce_scatter_from(const Call& call, at::TensorList outputs,
                                                           at::TensorList inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  auto aliases = aliases_for(opts.asyncOp);
  if (!on_host_ && outputs.size() == 1) {  // without lists: sharded training calls nothing oftener
    auto out = aliases.of(outputs[0]), in = aliases.of(inputs[0]);
    return shared(call, outputs, inner_->_reduce_scatter_base(out, in, opts));
  }
  auto begin = [in = shapeless(aliases.of(inputs))](c10d::Backend& inner, auto& out,
                                                    const auto& opts) mutable {
    if (out.size() == 1) return inner._reduce_scatter_base(out[0], in[0], opts);
    return inner.reduce_scatter_tensor_coalesced(out, in, opts);
  };
  return run_reduction(call, outputs, shapeless(aliases.of(outputs)), opts, std::move(begin));
}

// -------------------------------------------------------------------------------------------- gathers --

AliasBackend::Work AliasBackend::begin_all_gather(const Call& call, Lists& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& opts) {
  auto aliases = aliases_for(opts.asyncOp);
  auto begin = [out = movable(aliases, outputs), in = movable(aliases, inputs),
                opts](c10d::Backend& inner) mutable {
    return begin_parts(inner, out.front(), [&] { return inner.allgather(out, in, opts); });
  };
  return run(call, outputs.front(), std::move(begin));
}

AliasBackend::Work AliasBackend::begin_all_gather_coalesced(const Call& call, Lists& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& opts) {
  auto aliases = aliases_for(opts.asyncOp);
  auto begin = [out = movable(aliases, outputs), in = movable(aliases, inputs),
                opts](c10d::Backend& inner) mutable { return inner.allgather_coalesced(out, in, opts); };
  return run(call, flat(outputs), std::move(begin));
}

AliasBackend::Work AliasBackend::begin_all_gather_into(const Call& call, at::TensorList outputs,
                                                       at::TensorList inputs,
                                                       const c10d::AllgatherOptions& opts) {
  auto aliases = aliases_for(opts.asyncOp);
  if (!on_host_ && outputs.size() == 1) {  // without lists: sharded training calls nothing oftener
    auto out = aliases.of(outputs[0]), in = aliases.of(inputs[0]);
    return shared(call, outputs, inner_->_allgather_base(out, in, opts));
  }
  auto out = movable(aliases, outputs), in = movable(aliases, inputs);
  // Gloo wants shapes that fit, of one number or of rows to stack they do not; what is transposed it copies.
  if (are_contiguous(outputs) && are_contiguous(inputs)) {
    out = shapeless(std::move(out));
    in = shapeless(std::move(in));
  }
  auto begin = [out = std::move(out), in = std::move(in), opts](c10d::Backend& inner) mutable {
    if (out.size() == 1) return inner._allgather_base(out[0], in[0], opts);
    return inner.allgather_into_tensor_coalesced(out, in, opts);
  };
  return run(call, outputs, std::move(begin));
}

AliasBackend::Work AliasBackend::begin_gather(const Call& call, Lists& outputs, Tensors& inputs,
                                              const c10d::GatherOptions& opts) {
  auto aliases = aliases_for(opts.asyncOp);
  auto begin = [out = movable(aliases, outputs), in = movable(aliases, inputs),
                opts](c10d::Backend& inner) mutable { return inner.gather(out, in, opts); };
  return run(call, flat(outputs), std::move(begin));
}

// ------------------------------------------------------------------- from one to all, from all to all --

AliasBackend::Work AliasBackend::begin_broadcast(const Call& call, Tensors& tensors,
                                                 const c10d::BroadcastOptions& opts) {
  return move_one(call, tensors,
                  [opts](c10d::Backend& inner, Tensors& out) { return inner.broadcast(out, opts); });
}

AliasBackend::Work AliasBackend::begin_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                                               const c10d::ScatterOptions& opts) {
  auto aliases = aliases_for(opts.asyncOp);
  auto begin = [out = movable(aliases, outputs), in = movable(aliases, inputs),
                opts](c10d::Backend& inner) mutable { return inner.scatter(out, in, opts); };
  return run(call, outputs, std::move(begin));
}

// Gloo wants parts of one size; in one piece they may have any.
AliasBackend::Work AliasBackend::all_to_all_on_host(const Call& call, const Tensors& outputs,
                                                    const Tensors& inputs,
                                                    const c10d::AllToAllOptions& opts) {
  auto aliases = aliases_for(opts.asyncOp);
  auto out = movable(aliases, outputs), in = movable(aliases, inputs);
  auto received = std::make_shared<at::Tensor>();
  auto begin = [received, out, in, opts](c10d::Backend& inner) mutable {
    auto sent = packed(in);
    auto output_counts = counts_of(out), input_counts = counts_of(in);
    *received = room_for(out);
    return inner.alltoall_base(*received, sent, output_counts, input_counts, opts);
  };
  auto finish = [received, out] { unpack(*received, out); };
  return run_on_host(call, outputs, std::move(begin), std::move(finish));
}

AliasBackend::Work AliasBackend::begin_all_to_all(const Call& call, Tensors& outputs, Tensors& inputs,
                                                  const c10d::AllToAllOptions& opts) {
  if (on_host_) return all_to_all_on_host(call, outputs, inputs, opts);
  auto aliases = aliases_for(opts.asyncOp);
  auto begin = [out = aliases.of(outputs), in = aliases.of(inputs), opts](c10d::Backend& inner) mutable {
    return inner.alltoall(out, in, opts);
  };
  return run(call, outputs, std::move(begin));
}

AliasBackend::Work AliasBackend::begin_all_to_all_single(const Call& call, at::Tensor& output,
                                                         at::Tensor& input,
                                                         std::vector<int64_t>& output_splits,
                                                         std::vector<int64_t>& input_splits,
                                                         const c10d::AllToAllOptions& opts) {
  auto aliases = aliases_for(opts.asyncOp);
  auto begin = [out = movable(aliases, output), in = movable(aliases, input), output_splits, input_splits,
                opts](c10d::Backend& inner) mutable {
    return inner.alltoall_base(out, in, output_splits, input_splits, opts);
  };
  return run(call, output, std::move(begin));
}

// ------------------------------------------------------------------------ point to point, and nothing --

AliasBackend::Work AliasBackend::begin_send(const Call& call, Tensors& tensors, int destination, int tag) {
  return move_one(call, tensors, [destination, tag](c10d::Backend& inner, Tensors& in) {
    return inner.send(in, destination, tag);
  });
}

AliasBackend::Work AliasBackend::begin_recv(const Call& call, Tensors& tensors, int source, int tag) {
  return move_one(call, tensors,
                  [source, tag](c10d::Backend& inner, Tensors& out) { return inner.recv(out, source, tag); });
}

AliasBackend::Work AliasBackend::begin_recv_from_any(const Call& call, Tensors& tensors, int tag) {
  return move_one(call, tensors,
                  [tag](c10d::Backend& inner, Tensors& out) { return inner.recvAnysource(out, tag); });
}

AliasBackend::Work AliasBackend::begin_barrier(const Call& call, const c10d::BarrierOptions& opts) {
  auto inner_opts = opts;
  inner_opts.device.reset();
  if (!on_host_ && inner_opts.device_ids.empty()) inner_opts.device_ids = {call.device.index()};
  auto begin = [inner_opts](c10d::Backend& inner) { return inner.barrier(inner_opts); };
  return run(call, {}, std::move(begin));
}

}  // namespace tefl::ccl
