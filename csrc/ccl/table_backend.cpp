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

TableBackend::TableBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Timeout timeout)
    : DeviceBackend(rank, size, store, timeout), store_(store), timeout_(timeout), watchdog_(timeout) {}

TableBackend::~TableBackend() { stop_comparing(); }

std::string TableBackend::failure() const {
  const auto failed = DeviceBackend::failure();
  return failed.empty() ? watchdog_.failure() : failed;
}

// --------------------------------------------------------------------------------- how a call is made --

tefl_stream TableBackend::Lane::native() const { return device::native_stream(stream); }

TableBackend::Lane TableBackend::lane(const Call& call, int peer, bool receives) {
  const auto index = call.device.index();
  const std::lock_guard<std::mutex> lock(lanes_mutex_);
  auto& communicator = communicators_[index];
  if (!communicator) {
    const auto key = "tefl/communicator/" + std::to_string(communicators_.size());
    communicator = std::make_shared<Communicator>(call, *store_, key, index, timeout_, *ledger_);
  }
  const auto key = std::make_tuple(index, peer, receives);
  auto stream = streams_.find(key);
  if (stream == streams_.end()) stream = streams_.emplace(key, device::new_stream(index, 0)).first;
  device::order_streams(device::current_stream(index), stream->second);
  return {communicator, stream->second};
}

void TableBackend::watch(const c10::intrusive_ptr<StreamWork>& work, Timeout timeout) {
  work->enqueued();
  watchdog_.watch(work, timeout);
}

TableBackend::Work TableBackend::run(const Call& call, const Tensors& outputs, const Tensors& inputs,
                                     Timeout timeout, const Body& body) {
  Tensors kept = joined(outputs, inputs);
  const c10::DeviceGuard on(call.device);
  const Lane lane = this->lane(call, kCollectives, false);
  {
    const c10::StreamGuard in(lane.stream);
    body(lane, kept);
  }
  auto work = c10::make_intrusive<StreamWork>(call, outputs, ledger_, kept, lane.stream, lane.communicator);
  watch(work, timeout);
  return this->kept(work);
}

// A message's stream is its own, and in a group it is enqueued when the group ends.
TableBackend::Work TableBackend::message(const Call& call, Tensors& tensors, int peer, bool receives) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < getSize() && peer != getRank(), call.name, ": the peer is rank ",
                    peer, ", wants another rank of 0 to ", getSize() - 1);
  const c10::DeviceGuard on(call.device);
  const Lane lane = this->lane(call, peer, receives);
  const auto& tensor = tensors.front();
  const auto bytes = bytes_of(tensor);
  check(receives ? table().recv(lane.comm(), tensor.mutable_data_ptr(), bytes, peer, lane.native())
                 : table().send(lane.comm(), tensor.const_data_ptr(), bytes, peer, lane.native()),
        call);
  auto work =
      c10::make_intrusive<StreamWork>(call, tensors, ledger_, tensors, lane.stream, lane.communicator);
  if (!is_in_group()) watch(work, kNoTimeout);
  return kept(work);
}

void TableBackend::begin_group(const Call& call) { check(table().group_start(), call); }

TableBackend::Work TableBackend::end_group(const Call& call, std::vector<Work> works) {
  check(table().group_end(), call);
  for (const auto& work : works) {
    auto one = c10::dynamic_intrusive_pointer_cast<StreamWork>(work);
    if (one->call().is_message()) watch(one, kNoTimeout);
  }
  return c10::make_intrusive<WorkGroup>(call, ledger_, std::move(works));
}

// ----------------------------------------------------------------------------------------- reductions --

TableBackend::Work TableBackend::reduce_all(const Call& call, Tensors& tensors, const c10d::ReduceOp& op,
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
    enqueue_reduction(call, opts.reduceOp, results, [&](tefl_dtype dtype, tefl_reduction reduction) {
      return table().reduce(lane.comm(), tensor.const_data_ptr(), output, tensor.numel(), dtype, reduction,
                            static_cast<int32_t>(opts.rootRank), lane.native());
    });
  });
}

TableBackend::Work TableBackend::begin_reduce_scatter_from(const Call& call, Tensors outputs, Tensors inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  return run(call, outputs, inputs, opts.timeout, [&](const Lane& lane, Tensors& kept) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto input = in_order(inputs[i], kept), output = room_in_order(outputs[i], kept);
      enqueue_reduction(call, opts.reduceOp, {output}, [&](tefl_dtype dtype, tefl_reduction reduction) {
        return table().reduce_scatter(lane.comm(), input.const_data_ptr(), output.mutable_data_ptr(),
                                      output.numel(), dtype, reduction, lane.native());
      });
      arrived(output, outputs[i]);
    }
  });
}

TableBackend::Work TableBackend::begin_reduce_scatter(const Call& call, Tensors& outputs, Lists& inputs,
                                                      const c10d::ReduceScatterOptions& opts) {
  return run(call, outputs, inputs.front(), opts.timeout, [&](const Lane& lane, Tensors& kept) {
    const auto all = kept.emplace_back(packed(inputs.front()));
    const auto output = room_in_order(outputs.front(), kept);
    enqueue_reduction(call, opts.reduceOp, {output}, [&](tefl_dtype dtype, tefl_reduction reduction) {
      return table().reduce_scatter(lane.comm(), all.const_data_ptr(), output.mutable_data_ptr(),
                                    output.numel(), dtype, reduction, lane.native());
    });
    arrived(output, outputs.front());
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

TableBackend::Work TableBackend::begin_all_gather_into(const Call& call, Tensors outputs, Tensors inputs,
                                                       const c10d::AllgatherOptions& opts) {
  return run(call, outputs, inputs, opts.timeout, [&](const Lane& lane, Tensors& kept) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto output = room_in_order(outputs[i], kept);
      gather_one(call, lane, inputs[i], output, kept);
      arrived(output, outputs[i]);
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
      Tensors parts;
      for (const auto& of_rank : outputs) parts.push_back(of_rank.at(i));
      require_parts(call, parts, inputs[i], "outputs");
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
    if (outputs.size() == 1) arrived(received, outputs.front());
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
