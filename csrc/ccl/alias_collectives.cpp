#include "ccl/alias_backend.h"
#include "ccl/host_form.h"
#include "ccl/packing.h"
#include "device/current_device.h"

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

template <class Given>
Given AliasBackend::movable(const Given& given) const {
  return on_host_ ? as_movable(twins_of(given)) : twins_of(given);
}

Tensors AliasBackend::shapeless(const Tensors& tensors) const {
  return on_host_ ? without_shape(twins_of(tensors)) : twins_of(tensors);
}

// ----------------------------------------------------------------------------------------- reductions --

AliasBackend::Work AliasBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  auto call = announce(OpType::ALLREDUCE, "all_reduce", tensors, by(opts.reduceOp));
  device_of(call, tensors);
  const auto how = reduction(opts.reduceOp);
  auto twins = twins_of(tensors);
  auto start = [inner = inner_, twins, opts = with(opts, how)]() mutable {
    return inner->allreduce(twins, opts);
  };
  return run_reduction(call, tensors, {}, twins, how, start);
}

AliasBackend::Work AliasBackend::allreduce_coalesced(Tensors& tensors,
                                                     const c10d::AllreduceCoalescedOptions& opts) {
  auto call = announce(OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", tensors, by(opts.reduceOp));
  device_of(call, tensors);
  const auto how = reduction(opts.reduceOp);
  auto twins = twins_of(tensors);
  auto start = [inner = inner_, twins, opts = with(opts, how)]() mutable {
    return inner->allreduce_coalesced(twins, opts);
  };
  return run_reduction(call, tensors, {}, twins, how, start);
}

AliasBackend::Work AliasBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  auto call = announce(OpType::REDUCE, "reduce", tensors, by(opts.reduceOp) + root(opts.rootRank));
  device_of(call, tensors);
  const auto how = reduction(opts.reduceOp);
  auto twins = twins_of(tensors);
  const bool receives = getRank() == opts.rootRank;
  // Gloo reduces in place on every rank; whoever is not the root keeps its tensor.
  const bool spares_input = on_host_ && !receives;
  auto start = [inner = inner_, twins, spares_input, opts = with(opts, how)]() mutable {
    if (spares_input) {
      for (auto& twin : twins) twin = twin.clone();
    }
    return inner->reduce(twins, opts);
  };
  return run_reduction(call, tensors, {}, receives ? twins : Tensors{}, how, start);
}

AliasBackend::Work AliasBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                const c10d::ReduceScatterOptions& opts) {
  auto call = announce(OpType::REDUCE_SCATTER, "reduce_scatter", outputs, by(opts.reduceOp));
  device_of(call, joined(outputs, flat(inputs)));
  const auto how = reduction(opts.reduceOp);
  auto out = twins_of(outputs);
  auto start = [inner = inner_, out, in = twins_of(inputs), opts = with(opts, how)]() mutable {
    return inner->reduce_scatter(out, in, opts);
  };
  return run_reduction(call, outputs, flat(inputs), out, how, start);
}

AliasBackend::Work AliasBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& opts) {
  auto call = announce(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", {output}, by(opts.reduceOp));
  device_of(call, {output, input});
  const auto how = reduction(opts.reduceOp);
  auto out = shapeless(Tensors{output}), in = shapeless(Tensors{input});
  auto start = [inner = inner_, out, in, opts = with(opts, how)]() mutable {
    return inner->_reduce_scatter_base(out[0], in[0], opts);
  };
  return run_reduction(call, {output}, {input}, out, how, start);
}

AliasBackend::Work AliasBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::ReduceScatterOptions& opts) {
  auto call =
      announce(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor_coalesced", outputs, by(opts.reduceOp));
  device_of(call, joined(outputs, inputs));
  const auto how = reduction(opts.reduceOp);
  auto out = shapeless(outputs);
  auto start = [inner = inner_, out, in = shapeless(inputs), opts = with(opts, how)]() mutable {
    return inner->reduce_scatter_tensor_coalesced(out, in, opts);
  };
  return run_reduction(call, outputs, inputs, out, how, start);
}

// -------------------------------------------------------------------------------------------- gathers --

AliasBackend::Work AliasBackend::allgather(Lists& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& opts) {
  // NCCL gathers tensors that differ between ranks, so that only gloo's are compared.
  auto call = announce(OpType::ALLGATHER, "all_gather", on_host_ ? inputs : Tensors{});
  device_of(call, joined(flat(outputs), inputs));
  auto start = [inner = inner_, out = movable(outputs), in = movable(inputs), opts]() mutable {
    return inner->allgather(out, in, opts);
  };
  return run(call, flat(outputs), inputs, start);
}

AliasBackend::Work AliasBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& opts) {
  auto call = announce(OpType::ALLGATHER_COALESCED, "all_gather_coalesced", inputs);
  device_of(call, joined(flat(outputs), inputs));
  auto start = [inner = inner_, out = movable(outputs), in = movable(inputs), opts]() mutable {
    return inner->allgather_coalesced(out, in, opts);
  };
  return run(call, flat(outputs), inputs, start);
}

AliasBackend::Work AliasBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) {
  auto call = announce(OpType::_ALLGATHER_BASE, "all_gather_into_tensor", {input});
  device_of(call, {output, input});
  auto start = [inner = inner_, out = movable(Tensors{output}), in = movable(Tensors{input}),
                opts]() mutable { return inner->_allgather_base(out[0], in[0], opts); };
  return run(call, {output}, {input}, start);
}

AliasBackend::Work AliasBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::AllgatherOptions& opts) {
  auto call = announce(OpType::_ALLGATHER_BASE, "all_gather_into_tensor_coalesced", inputs);
  device_of(call, joined(outputs, inputs));
  auto start = [inner = inner_, out = movable(outputs), in = movable(inputs), opts]() mutable {
    return inner->allgather_into_tensor_coalesced(out, in, opts);
  };
  return run(call, outputs, inputs, start);
}

AliasBackend::Work AliasBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  auto call = announce(OpType::GATHER, "gather", inputs, root(opts.rootRank));
  device_of(call, joined(flat(outputs), inputs));
  auto start = [inner = inner_, out = movable(outputs), in = movable(inputs), opts]() mutable {
    return inner->gather(out, in, opts);
  };
  return run(call, flat(outputs), inputs, start);
}

// ------------------------------------------------------------------- from one to all, from all to all --

AliasBackend::Work AliasBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  auto call = announce(OpType::BROADCAST, "broadcast", tensors, root(opts.rootRank));
  device_of(call, tensors);
  auto start = [inner = inner_, twins = movable(tensors), opts]() mutable {
    return inner->broadcast(twins, opts);
  };
  return run(call, tensors, {}, start);
}

AliasBackend::Work AliasBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) {
  auto call = announce(OpType::SCATTER, "scatter", outputs, root(opts.rootRank));
  device_of(call, joined(outputs, flat(inputs)));
  auto start = [inner = inner_, out = movable(outputs), in = movable(inputs), opts]() mutable {
    return inner->scatter(out, in, opts);
  };
  return run(call, outputs, flat(inputs), start);
}

// Gloo wants parts of one size; in one piece they may have any.
AliasBackend::Work AliasBackend::alltoall_on_host(Call call, const Tensors& outputs, const Tensors& inputs,
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
  return run(std::move(call), outputs, inputs, start, finish);
}

AliasBackend::Work AliasBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllToAllOptions& opts) {
  // Measured after it is announced: ranks may send different amounts, which are not compared.
  auto call = announce(OpType::ALLTOALL, "all_to_all", {});
  device_of(call, joined(outputs, inputs));
  measure(call, inputs);
  require_one_each(call, outputs, "outputs");
  require_one_each(call, inputs, "inputs");
  if (on_host_) return alltoall_on_host(std::move(call), outputs, inputs, opts);
  auto start = [inner = inner_, out = twins_of(outputs), in = twins_of(inputs), opts]() mutable {
    return inner->alltoall(out, in, opts);
  };
  return run(call, outputs, inputs, start);
}

AliasBackend::Work AliasBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) {
  auto call = announce(OpType::ALLTOALL_BASE, "all_to_all_single", {});  // as above: not compared
  device_of(call, {output, input});
  measure(call, {input});
  auto start = [inner = inner_, out = movable(Tensors{output}), in = movable(Tensors{input}), output_splits,
                input_splits, opts]() mutable {
    return inner->alltoall_base(out[0], in[0], output_splits, input_splits, opts);
  };
  return run(call, {output}, {input}, start);
}

// ------------------------------------------------------------------------ point to point, and nothing --

AliasBackend::Work AliasBackend::send(Tensors& tensors, int destination, int tag) {
  auto call = point_to_point(OpType::SEND, "send", tensors);
  device_of(call, tensors);
  auto start = [inner = inner_, twins = movable(tensors), destination, tag]() mutable {
    return inner->send(twins, destination, tag);
  };
  return run(call, tensors, {}, start);
}

AliasBackend::Work AliasBackend::recv(Tensors& tensors, int source, int tag) {
  auto call = point_to_point(OpType::RECV, "recv", tensors);
  device_of(call, tensors);
  auto start = [inner = inner_, twins = movable(tensors), source, tag]() mutable {
    return inner->recv(twins, source, tag);
  };
  return run(call, tensors, {}, start);
}

AliasBackend::Work AliasBackend::recvAnysource(Tensors& tensors, int tag) {
  auto call = point_to_point(OpType::RECVANYSOURCE, "recv", tensors);
  device_of(call, tensors);
  auto start = [inner = inner_, twins = movable(tensors), tag]() mutable {
    return inner->recvAnysource(twins, tag);
  };
  return run(call, tensors, {}, start);
}

AliasBackend::Work AliasBackend::barrier(const c10d::BarrierOptions& opts) {
  auto call = announce(OpType::BARRIER, "barrier", {});
  auto inner_opts = opts;
  inner_opts.device.reset();
  if (!on_host_ && inner_opts.device_ids.empty()) inner_opts.device_ids = {device::current_device()};
  auto start = [inner = inner_, inner_opts]() mutable { return inner->barrier(inner_opts); };
  return run(call, {}, {}, start);
}

}  // namespace tefl::ccl
