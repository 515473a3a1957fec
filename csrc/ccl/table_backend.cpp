#include "ccl/table_backend.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "ccl/packing.h"
#include "ccl/table_types.h"
#include "device/current_device.h"
#include "device/events.h"
#include "device/provider.h"
#include "device/streams.h"

namespace tefl::ccl {
namespace {

using c10d::OpType;

constexpr int kCollectives = -1;  // the peer of those that have none

}  // namespace

TableBackend::TableBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, Timeout timeout)
    : c10d::Backend(rank, size),
      store_(store),
      timeout_(timeout),
      ledger_(store, timeout),
      watchdog_(timeout) {}

// --------------------------------------------------------------------------------- how a call is made --

tefl_stream TableBackend::Lane::native() const { return device::native_stream(stream); }

Call TableBackend::announce(OpType type, const char* name, const Tensors& measured,
                            const std::string& detail) {
  const bool counted = !c10d::isP2POp(type);
  Call call{type, name, counted ? ++calls_ : ++messages_, getRank(), getSize()};
  measure(call, measured);
  device::ensure_initialized();
  const auto failure = watchdog_.failure();
  if (!failure.empty()) fail(call, "the process group has failed before: " + failure);
  if (counted) ledger_.compare(call, detail);
  return call;
}

TableBackend::Lane TableBackend::lane(const Call& call, c10::Device device, int peer, bool receives) {
  auto& communicator = communicators_[device.index()];
  if (!communicator) {
    const auto key = "tefl/communicator/" + std::to_string(communicators_.size());
    communicator = std::make_shared<Communicator>(call, *store_, key, device.index(), timeout_, ledger_);
  }
  const auto key = std::make_tuple(device.index(), peer, receives);
  auto stream = streams_.find(key);
  if (stream == streams_.end()) {
    stream = streams_.emplace(key, device::new_stream(device.index(), 0)).first;
  }
  return {communicator, stream->second};
}

TableBackend::Work TableBackend::run(Call call, const Tensors& outputs, const Tensors& inputs,
                                     Timeout timeout, const Body& body) {
  Tensors kept = joined(outputs, inputs);
  const auto device = device_of(call, kept);
  const c10::DeviceGuard on(device);
  const Lane lane = this->lane(call, device, kCollectives, false);
  device::order_streams(device::current_stream(device.index()), lane.stream);
  {
    const c10::StreamGuard in(lane.stream);
    body(lane, kept);
  }
  const bool blocks_host = call.type == OpType::BARRIER;
  auto work =
      c10::make_intrusive<StreamWork>(call, outputs, kept, lane.stream, lane.communicator, blocks_host);
  work->enqueued();
  watchdog_.watch(work, timeout);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

// A message's stream is its own, and in a group it is enqueued when the group ends.
TableBackend::Work TableBackend::message(Call call, Tensors& tensors, int peer, bool receives) {
  require_one(call, tensors.size());
  TORCH_CHECK_VALUE(peer >= 0 && peer < getSize() && peer != getRank(), call.name, ": the peer is rank ",
                    peer, ", wants another rank of 0 to ", getSize() - 1);
  const auto device = device_of(call, tensors);
  const c10::DeviceGuard on(device);
  const Lane lane = this->lane(call, device, peer, receives);
  device::order_streams(device::current_stream(device.index()), lane.stream);
  const auto& tensor = tensors.front();
  const auto bytes = bytes_of(tensor);
  check(receives ? table().recv(lane.comm(), tensor.mutable_data_ptr(), bytes, peer, lane.native())
                 : table().send(lane.comm(), tensor.const_data_ptr(), bytes, peer, lane.native()),
        call);
  auto work = c10::make_intrusive<StreamWork>(call, tensors, tensors, lane.stream, lane.communicator, false);
  if (coalescing_) {
    coalesced_.push_back(work);
  } else {
    work->enqueued();
    watchdog_.watch(work, kNoTimeout);
  }
  return work;
}

void TableBackend::startCoalescing() {
  coalescing_ = true;
  check(table().group_start(), Call{OpType::COALESCED, "coalesced calls", calls_, getRank(), getSize()});
}

TableBackend::Work TableBackend::endCoalescing() {
  Call call{OpType::COALESCED, "coalesced calls", calls_, getRank(), getSize()};
  coalescing_ = false;
  const auto works = std::exchange(coalesced_, {});
  check(table().group_end(), call);
  std::vector<Work> all;
  for (const auto& work : works) {
    if (c10d::isP2POp(work->call().type)) {
      work->enqueued();
      watchdog_.watch(work, kNoTimeout);
    }
    all.push_back(work);
  }
  return c10::make_intrusive<WorkGroup>(call, std::move(all));
}

// ----------------------------------------------------------------------------------------- reductions --

TableBackend::Work TableBackend::reduce_all(Call call, Tensors& tensors, const c10d::ReduceOp& op,
                                            Timeout timeout) {
  return run(call, tensors, {}, timeout, [&](const Lane& lane, Tensors&) {
    for (const auto& tensor : tensors) {
      void* data = tensor.mutable_data_ptr();
      enqueue_reduction(call, op, {tensor}, [&](tefl_dtype dtype, tefl_reduction reduction) {
        return table().all_reduce(lane.comm(), data, data, tensor.numel(), dtype, reduction, lane.native());
      });
    }
  });
}

TableBackend::Work TableBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  auto call = announce(OpType::ALLREDUCE, "all_reduce", tensors, by(opts.reduceOp));
  return reduce_all(call, tensors, opts.reduceOp, opts.timeout);
}

TableBackend::Work TableBackend::allreduce_coalesced(Tensors& tensors,
                                                     const c10d::AllreduceCoalescedOptions& opts) {
  auto call = announce(OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", tensors, by(opts.reduceOp));
  return reduce_all(call, tensors, opts.reduceOp, opts.timeout);
}

TableBackend::Work TableBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  auto call = announce(OpType::REDUCE, "reduce", tensors, by(opts.reduceOp) + root(opts.rootRank));
  require_one(call, tensors.size());
  return run(call, tensors, {}, opts.timeout, [&](const Lane& lane, Tensors&) {
    const auto& tensor = tensors.front();
    const bool receives = getRank() == opts.rootRank;
    void* output = receives ? tensor.mutable_data_ptr() : nullptr;
    const auto results = receives ? tensors : Tensors{};
    enqueue_reduction(call, opts.reduceOp, results, [&](tefl_dtype dtype, tefl_reduction reduction) {
      return table().reduce(lane.comm(), tensor.const_data_ptr(), output, tensor.numel(), dtype, reduction,
                            static_cast<int32_t>(opts.rootRank), lane.native());
    });
  });
}

TableBackend::Work TableBackend::reduce_parts(Call call, const Tensors& outputs, const Tensors& inputs,
                                              const c10d::ReduceOp& op, Timeout timeout) {
  for (size_t i = 0; i < inputs.size(); ++i) require_multiple(call, inputs[i], outputs[i]);
  return run(call, outputs, inputs, timeout, [&](const Lane& lane, Tensors&) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      enqueue_reduction(call, op, {outputs[i]}, [&](tefl_dtype dtype, tefl_reduction reduction) {
        return table().reduce_scatter(lane.comm(), inputs[i].const_data_ptr(), outputs[i].mutable_data_ptr(),
                                      outputs[i].numel(), dtype, reduction, lane.native());
      });
    }
  });
}

TableBackend::Work TableBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& opts) {
  auto call = announce(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", {output}, by(opts.reduceOp));
  return reduce_parts(call, {output}, {input}, opts.reduceOp, opts.timeout);
}

TableBackend::Work TableBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::ReduceScatterOptions& opts) {
  auto call =
      announce(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor_coalesced", outputs, by(opts.reduceOp));
  return reduce_parts(call, outputs, inputs, opts.reduceOp, opts.timeout);
}

TableBackend::Work TableBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                const c10d::ReduceScatterOptions& opts) {
  auto call = announce(OpType::REDUCE_SCATTER, "reduce_scatter", outputs, by(opts.reduceOp));
  require_one(call, outputs.size());
  require_parts(call, inputs.front(), outputs.front(), "inputs");
  return run(call, outputs, inputs.front(), opts.timeout, [&](const Lane& lane, Tensors& kept) {
    const auto all = kept.emplace_back(packed(inputs.front()));
    const auto& output = outputs.front();
    enqueue_reduction(call, opts.reduceOp, outputs, [&](tefl_dtype dtype, tefl_reduction reduction) {
      return table().reduce_scatter(lane.comm(), all.const_data_ptr(), output.mutable_data_ptr(),
                                    output.numel(), dtype, reduction, lane.native());
    });
  });
}

// -------------------------------------------------------------------------------------------- gathers --

TableBackend::Work TableBackend::gather_all(Call call, const Tensors& outputs, const Tensors& inputs,
                                            Timeout timeout) {
  for (size_t i = 0; i < inputs.size(); ++i) require_multiple(call, outputs[i], inputs[i]);
  return run(call, outputs, inputs, timeout, [&](const Lane& lane, Tensors&) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      check(table().all_gather(lane.comm(), inputs[i].const_data_ptr(), outputs[i].mutable_data_ptr(),
                               bytes_of(inputs[i]), lane.native()),
            call);
    }
  });
}

TableBackend::Work TableBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) {
  auto call = announce(OpType::_ALLGATHER_BASE, "all_gather_into_tensor", {input});
  return gather_all(call, {output}, {input}, opts.timeout);
}

TableBackend::Work TableBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::AllgatherOptions& opts) {
  auto call = announce(OpType::_ALLGATHER_BASE, "all_gather_into_tensor_coalesced", inputs);
  return gather_all(call, outputs, inputs, opts.timeout);
}

TableBackend::Work TableBackend::allgather(Lists& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& opts) {
  auto call = announce(OpType::ALLGATHER, "all_gather", inputs);
  require_one(call, inputs.size());
  require_parts(call, outputs.front(), inputs.front(), "outputs");
  return run(call, outputs.front(), inputs, opts.timeout, [&](const Lane& lane, Tensors& kept) {
    const auto& input = inputs.front();
    const auto all = kept.emplace_back(at::empty({input.numel() * getSize()}, input.options()));
    check(table().all_gather(lane.comm(), input.const_data_ptr(), all.mutable_data_ptr(), bytes_of(input),
                             lane.native()),
          call);
    unpack(all, outputs.front());
  });
}

// Each output list holds, of every input, one rank's.
TableBackend::Work TableBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& opts) {
  auto call = announce(OpType::ALLGATHER_COALESCED, "all_gather_coalesced", inputs);
  return run(call, flat(outputs), inputs, opts.timeout, [&](const Lane& lane, Tensors& kept) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensors parts;
      for (const auto& of_rank : outputs) parts.push_back(of_rank.at(i));
      require_parts(call, parts, inputs[i], "outputs");
      const auto all = kept.emplace_back(at::empty({inputs[i].numel() * getSize()}, inputs[i].options()));
      check(table().all_gather(lane.comm(), inputs[i].const_data_ptr(), all.mutable_data_ptr(),
                               bytes_of(inputs[i]), lane.native()),
            call);
      unpack(all, parts);
    }
  });
}

// -------------------------------------------------------------------------------- different data for each --

TableBackend::Work TableBackend::exchange(Call call, const Tensors& outputs, const Tensors& inputs,
                                          const Counts& out, const Counts& in, Timeout timeout) {
  return run(call, outputs, inputs, timeout, [&](const Lane& lane, Tensors& kept) {
    at::Tensor sent, received;
    if (inputs.size() == 1) sent = inputs.front();
    if (inputs.size() > 1) sent = kept.emplace_back(packed(inputs));
    if (outputs.size() == 1) received = outputs.front();
    if (outputs.size() > 1) received = kept.emplace_back(room_for(outputs));
    check(table().all_to_all(lane.comm(), sent.defined() ? sent.const_data_ptr() : nullptr, in.data(),
                             received.defined() ? received.mutable_data_ptr() : nullptr, out.data(),
                             lane.native()),
          call);
    if (outputs.size() > 1) unpack(received, outputs);
  });
}

TableBackend::Work TableBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllToAllOptions& opts) {
  auto call = announce(OpType::ALLTOALL, "all_to_all", {});
  measure(call, inputs);
  require_one_each(call, outputs, "outputs");
  require_one_each(call, inputs, "inputs");
  return exchange(call, outputs, inputs, bytes_of_each(outputs), bytes_of_each(inputs), opts.timeout);
}

TableBackend::Work TableBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) {
  auto call = announce(OpType::ALLTOALL_BASE, "all_to_all_single", {});
  measure(call, {input});
  return exchange(call, {output}, {input}, split_bytes(call, output, output_splits),
                  split_bytes(call, input, input_splits), opts.timeout);
}

TableBackend::Work TableBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  auto call = announce(OpType::GATHER, "gather", inputs, root(opts.rootRank));
  require_one(call, inputs.size());
  Counts in(getSize(), 0), out(getSize(), 0);
  in[opts.rootRank] = bytes_of(inputs.front());
  if (getRank() == opts.rootRank) {
    require_parts(call, flat(outputs), inputs.front(), "outputs");
    out.assign(getSize(), in[opts.rootRank]);
  }
  return exchange(call, flat(outputs), inputs, out, in, opts.timeout);
}

TableBackend::Work TableBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) {
  auto call = announce(OpType::SCATTER, "scatter", outputs, root(opts.rootRank));
  require_one(call, outputs.size());
  Counts in(getSize(), 0), out(getSize(), 0);
  out[opts.rootRank] = bytes_of(outputs.front());
  if (getRank() == opts.rootRank) {
    require_parts(call, flat(inputs), outputs.front(), "inputs");
    in.assign(getSize(), out[opts.rootRank]);
  }
  return exchange(call, outputs, flat(inputs), out, in, opts.timeout);
}

TableBackend::Work TableBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  auto call = announce(OpType::BROADCAST, "broadcast", tensors, root(opts.rootRank));
  return run(call, tensors, {}, opts.timeout, [&](const Lane& lane, Tensors&) {
    for (const auto& tensor : tensors) {
      check(table().broadcast(lane.comm(), tensor.mutable_data_ptr(), bytes_of(tensor),
                              static_cast<int32_t>(opts.rootRank), lane.native()),
            call);
    }
  });
}

// ------------------------------------------------------------------------ point to point, and nothing --

TableBackend::Work TableBackend::send(Tensors& tensors, int destination, int) {
  return message(announce(OpType::SEND, "send", tensors), tensors, destination, /*receives=*/false);
}

TableBackend::Work TableBackend::recv(Tensors& tensors, int source, int) {
  return message(announce(OpType::RECV, "recv", tensors), tensors, source, /*receives=*/true);
}

TableBackend::Work TableBackend::barrier(const c10d::BarrierOptions& opts) {
  auto call = announce(OpType::BARRIER, "barrier", {});
  const auto device = device_of(call, {});
  const auto options = at::TensorOptions().device(device).dtype(at::kByte);
  return run(call, {}, {}, opts.timeout, [&](const Lane& lane, Tensors& kept) {
    const auto token = kept.emplace_back(at::empty({getSize()}, options));
    void* data = token.mutable_data_ptr();
    check(table().all_gather(lane.comm(), static_cast<char*>(data) + getRank(), data, 1, lane.native()),
          call);
  });
}

}  // namespace tefl::ccl
