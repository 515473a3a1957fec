// The collectives of TableBackend: what each puts into its lane.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "ccl/packing.h"
#include "ccl/table_backend.h"
#include "ccl/table_types.h"
#include "device/provider.h"

namespace tefl::ccl {

// ----------------------------------------------------------------------------------------- reductions --

TableBackend::Work TableBackend::reduce_all(const Call& call, Tensors& tensors, const c10d::ReduceOp& op,
                                            Timeout timeout) {
  return run(call, tensors, {}, timeout, [&](const Lane& lane, Tensors&) {
    for (const auto& tensor : tensors) {
      void* data = tensor.mutable_data_ptr();
      enqueue_reduction(call, op, tensor.scalar_type(), {tensor},
                        [&](tefl_dtype dtype, tefl_reduction reduction) {
                          return table().all_reduce(lane.comm(), data, data, tensor.numel(), dtype, reduction,
                                                    lane.native());
                        });
    }
  });
}

TableBackend::Work TableBackend::begin_all_reduce(const Call& call, Tensors& tensors,
                                                  const c10d::AllreduceOptions& opts) {
  return reduce_all(call, tensors, opts.reduceOp, opts.timeout);
}

TableBackend::Work TableBackend::begin_all_reduce_coalesced(const Call& call, Tensors& tensors,
                                                            const c10d::AllreduceCoalescedOptions& opts) {
  return reduce_all(call, tensors, opts.reduceOp, opts.timeout);
}

TableBackend::Work TableBackend::begin_reduce(const Call& call, Tensors& tensors,
                                              const c10d::ReduceOptions& opts) {
  return run(call, tensors, {}, opts.timeout, [&](const Lane& lane, Tensors&) {
    const auto& tensor = tensors.front();
    const bool receives = getRank() == opts.rootRank;
    void* output = receives ? tensor.mutable_data_ptr() : nullptr;
    const auto results = receives ? tensors : Tensors{};
    enqueue_reduction(
        call, opts.reduceOp, tensor.scalar_type(), results, [&](tefl_dtype dtype, tefl_reduction reduction) {
          return table().reduce(lane.comm(), tensor.const_data_ptr(), output, tensor.numel(), dtype,
                                reduction, static_cast<int32_t>(opts.rootRank), lane.native());
        });
  });
}

TableBackend::Work TableBackend::begin_reduce_scatter_from(const Call& call, at::TensorList outputs,
                                                           at::TensorList inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  return run(call, outputs, inputs, opts.timeout, [&](const Lane& lane, Tensors& kept) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto input = in_order(inputs[i], kept), output = room_in_order(outputs[i], kept);
      enqueue_reduction(call, opts.reduceOp, output.scalar_type(), {output},
                        [&](tefl_dtype dtype, tefl_reduction reduction) {
                          return table().reduce_scatter(lane.comm(), input.const_data_ptr(),
                                                        output.mutable_data_ptr(), output.numel(), dtype,
                                                        reduction, lane.native());
                        });
      copy_back(output, outputs[i]);
    }
  });
}

TableBackend::Work TableBackend::begin_reduce_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                                                      const c10d::ReduceScatterOptions& opts) {
  return run(call, outputs, inputs.front(), opts.timeout, [&](const Lane& lane, Tensors& kept) {
    const auto all = kept.emplace_back(packed(inputs.front()));
    const auto output = room_in_order(outputs.front(), kept);
    enqueue_reduction(
        call, opts.reduceOp, output.scalar_type(), {output}, [&](tefl_dtype dtype, tefl_reduction reduction) {
          return table().reduce_scatter(lane.comm(), all.const_data_ptr(), output.mutable_data_ptr(),
                                        output.numel(), dtype, reduction, lane.native());
        });
    copy_back(output, outputs.front());
  });
}

// -------------------------------------------------------------------------------------------- gathers --

void TableBackend::gather_one(const Call& call, const Lane& lane, const at::Tensor& input,
                              const at::Tensor& output, Tensors& kept) {
  const auto sent = in_order(input, kept);
  check(table().all_gather(lane.comm(), sent.const_data_ptr(), output.mutable_data_ptr(), bytes_of(sent),
                           lane.native()),
        call);
}

TableBackend::Work TableBackend::begin_all_gather_into(const Call& call, at::TensorList outputs,
                                                       at::TensorList inputs,
                                                       const c10d::AllgatherOptions& opts) {
  return run(call, outputs, inputs, opts.timeout, [&](const Lane& lane, Tensors& kept) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto output = room_in_order(outputs[i], kept);
      gather_one(call, lane, inputs[i], output, kept);
      copy_back(output, outputs[i]);
    }
  });
}

TableBackend::Work TableBackend::begin_all_gather(const Call& call, Lists& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& opts) {
  return run(call, outputs.front(), inputs, opts.timeout, [&](const Lane& lane, Tensors& kept) {
    const auto all = kept.emplace_back(room_for(outputs.front()));
    gather_one(call, lane, inputs.front(), all, kept);
    unpack(all, outputs.front());
  });
}

// Each output list holds, of every input, one rank's.
TableBackend::Work TableBackend::begin_all_gather_coalesced(const Call& call, Lists& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& opts) {
  return run(call, flat(outputs), inputs, opts.timeout, [&](const Lane& lane, Tensors& kept) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto parts = of_each_rank(outputs, i);
      const auto all = kept.emplace_back(room_for(parts));
      gather_one(call, lane, inputs[i], all, kept);
      unpack(all, parts);
    }
  });
}

// -------------------------------------------------------------------------------- different data for each --

TableBackend::Work TableBackend::exchange(const Call& call, const Tensors& outputs, const Tensors& inputs,
                                          const Counts& out, const Counts& in, Timeout timeout) {
  return run(call, outputs, inputs, timeout, [&](const Lane& lane, Tensors& kept) {
    at::Tensor sent, received;
    if (inputs.size() == 1) sent = in_order(inputs.front(), kept);
    if (inputs.size() > 1) sent = kept.emplace_back(packed(inputs));
    if (outputs.size() == 1) received = room_in_order(outputs.front(), kept);
    if (outputs.size() > 1) received = kept.emplace_back(room_for(outputs));
    check(table().all_to_all(lane.comm(), sent.defined() ? sent.const_data_ptr() : nullptr, in.data(),
                             received.defined() ? received.mutable_data_ptr() : nullptr, out.data(),
                             lane.native()),
          call);
    if (outputs.size() == 1) copy_back(received, outputs.front());
    if (outputs.size() > 1) unpack(received, outputs);
  });
}

TableBackend::Work TableBackend::begin_all_to_all(const Call& call, Tensors& outputs, Tensors& inputs,
                                                  const c10d::AllToAllOptions& opts) {
  return exchange(call, outputs, inputs, bytes_of_each(outputs), bytes_of_each(inputs), opts.timeout);
}

TableBackend::Work TableBackend::begin_all_to_all_single(const Call& call, at::Tensor& output,
                                                         at::Tensor& input,
                                                         std::vector<int64_t>& output_splits,
                                                         std::vector<int64_t>& input_splits,
                                                         const c10d::AllToAllOptions& opts) {
  return exchange(call, {output}, {input}, split_bytes(call, output, output_splits),
                  split_bytes(call, input, input_splits), opts.timeout);
}

TableBackend::Work TableBackend::begin_gather(const Call& call, Lists& outputs, Tensors& inputs,
                                              const c10d::GatherOptions& opts) {
  Counts in(getSize(), 0), out(getSize(), 0);
  in[opts.rootRank] = bytes_of(inputs.front());
  if (getRank() == opts.rootRank) out.assign(getSize(), in[opts.rootRank]);
  return exchange(call, flat(outputs), inputs, out, in, opts.timeout);
}

TableBackend::Work TableBackend::begin_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                                               const c10d::ScatterOptions& opts) {
  Counts in(getSize(), 0), out(getSize(), 0);
  out[opts.rootRank] = bytes_of(outputs.front());
  if (getRank() == opts.rootRank) in.assign(getSize(), out[opts.rootRank]);
  return exchange(call, outputs, flat(inputs), out, in, opts.timeout);
}

TableBackend::Work TableBackend::begin_broadcast(const Call& call, Tensors& tensors,
                                                 const c10d::BroadcastOptions& opts) {
  return run(call, tensors, {}, opts.timeout, [&](const Lane& lane, Tensors&) {
    for (const auto& tensor : tensors) {
      check(table().broadcast(lane.comm(), tensor.mutable_data_ptr(), bytes_of(tensor),
                              static_cast<int32_t>(opts.rootRank), lane.native()),
            call);
    }
  });
}

// ------------------------------------------------------------------------ point to point, and nothing --

TableBackend::Work TableBackend::begin_send(const Call& call, Tensors& tensors, int destination, int) {
  return message(call, tensors, destination, /*receives=*/false);
}

TableBackend::Work TableBackend::begin_recv(const Call& call, Tensors& tensors, int source, int) {
  return message(call, tensors, source, /*receives=*/true);
}

TableBackend::Work TableBackend::begin_recv_from_any(const Call& call, Tensors&, int) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, call.name, ": ", device::device_name(),
                              " cannot receive from any source; name the rank by src=");
}

TableBackend::Work TableBackend::begin_barrier(const Call& call, const c10d::BarrierOptions& opts) {
  const auto options = at::TensorOptions().device(call.device).dtype(at::kByte);
  return run(call, {}, {}, opts.timeout, [&](const Lane& lane, Tensors& kept) {
    const auto token = kept.emplace_back(at::empty({getSize()}, options));
    void* data = token.mutable_data_ptr();
    check(table().all_gather(lane.comm(), static_cast<char*>(data) + getRank(), data, 1, lane.native()),
          call);
  });
}

}  // namespace tefl::ccl
