#include "ccl/table_backend.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "ccl/packing.h"
#include "ccl/table_types.h"
#include "ccl/without_interpreter.h"
#include "device/current_device.h"
#include "device/events.h"
#include "device/provider.h"
#include "device/streams.h"

namespace tefl::ccl {
namespace {

constexpr int kCollectives = -1;  // the peer of those that have none

}  // namespace

TableBackend::TableBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Timeout timeout)
    : DeviceBackend(rank, size, store, timeout), watchdog_(timeout) {}

TableBackend::~TableBackend() {
  const WithoutInterpreter no_lock;
  stop_comparing();
  watchdog_.end();
}

// ------------------------------------------------------------------------------------------- its end --

std::string TableBackend::failure() const {
  const auto failed = DeviceBackend::failure();
  return failed.empty() ? watchdog_.failure() : failed;
}

// The other ranks learn of it, whether or not anything is under way here.
void TableBackend::abort_beneath(const std::string& reason) {
  watchdog_.fail(reason);
  const std::lock_guard<std::mutex> lock(lanes_mutex_);
  for (const auto& [index, place] : places_) {
    if (place.communicator) place.communicator->abort(reason);
  }
}

void TableBackend::shutdown() {
  watchdog_.drain();
  watchdog_.fail("the process group was destroyed");
}

// --------------------------------------------------------------------------------- how a call is made --

tefl_stream TableBackend::Lane::native() const { return device::native_stream(stream); }

// Making one waits for the other ranks: only calls of the same device wait for that.
std::shared_ptr<Communicator> TableBackend::communicator(const Call& call) {
  std::unique_lock<std::mutex> lanes(lanes_mutex_);
  auto& place = places_[call.device.index()];
  if (place.number == 0) place.number = places_.size();
  if (place.communicator) return place.communicator;
  lanes.unlock();
  const std::lock_guard<std::mutex> only_one(place.making);
  lanes.lock();
  if (place.communicator) return place.communicator;
  lanes.unlock();
  require_sound(call);
  std::shared_ptr<Communicator> made;
  or_give_up([&] {
    const auto key = "tefl/communicator/" + std::to_string(place.number);
    made = std::make_shared<Communicator>(call, key, *ledger_);
  });
  lanes.lock();
  place.communicator = made;
  lanes.unlock();
  if (const auto failed = failure(); !failed.empty()) made->abort(failed);  // meanwhile
  require_sound(call);
  return made;
}

TableBackend::Lane TableBackend::lane(const Call& call, int peer, bool receives) {
  auto communicator = this->communicator(call);
  const auto error = communicator->error();  // the watchdog learns of it a moment later
  if (C10_UNLIKELY(!error.empty())) or_give_up([&] { fail(call, error); });
  const auto index = call.device.index();
  const std::lock_guard<std::mutex> lock(lanes_mutex_);
  const auto key = std::make_tuple(index, peer, receives);
  auto stream = streams_.find(key);
  if (stream == streams_.end()) stream = streams_.emplace(key, device::new_stream(index, 0)).first;
  device::order_streams(device::current_stream(index), stream->second);
  return {std::move(communicator), stream->second};
}

void TableBackend::watch(const c10::intrusive_ptr<StreamWork>& work, Timeout timeout) {
  work->enqueued();
  watchdog_.watch(work, timeout);
}

TableBackend::Work TableBackend::run(const Call& call, at::TensorList outputs, at::TensorList inputs,
                                     Timeout timeout, const Body& body) {
  const c10::DeviceGuard on(call.device);
  const Lane lane = this->lane(call, kCollectives, false);
  auto work = c10::make_intrusive<StreamWork>(call, outputs.vec(), ledger_, concatenated(outputs, inputs),
                                              lane.stream, lane.communicator);
  {
    const c10::StreamGuard in(lane.stream);
    body(lane, work->kept());
  }
  watch(work, timeout);
  return kept(work);
}

// A message's stream is its own. In a group it waits for the group's end.
TableBackend::Work TableBackend::message(const Call& call, Tensors& tensors, int peer, bool receives) {
  const c10::DeviceGuard on(call.device);
  const Lane lane = this->lane(call, peer, receives);
  const auto work =
      c10::make_intrusive<StreamWork>(call, tensors, ledger_, tensors, lane.stream, lane.communicator);
  const Message message{work, lane, tensors.front(), peer, receives};
  if (is_in_group()) {
    collected_.push_back(message);
  } else {
    check(message.enqueue(), call);
    watch(work, kNoTimeout);
  }
  return kept(work);
}

// Some messages may be in their streams, and are to be watched, where others were refused.
TableBackend::Work TableBackend::end_group(const Call& call, std::vector<Work> works) {
  const auto messages = std::exchange(collected_, {});
  if (!messages.empty()) enqueue(call, messages);
  return c10::make_intrusive<WorkGroup>(call, ledger_, std::move(works));
}

void TableBackend::enqueue(const Call& call, const std::vector<Message>& messages) {
  const c10::DeviceGuard on(messages.front().tensor.device());
  std::string refused;
  const auto note = [&](tefl_status status) {
    if (status != TEFL_OK && refused.empty()) refused = device::provider_reason(status);
  };
  check(table().group_start(), call);
  for (const auto& message : messages) note(message.enqueue());
  note(table().group_end());
  for (const auto& message : messages) watch(message.work, kNoTimeout);
  if (!refused.empty()) fail(call, refused);
}

tefl_status TableBackend::Message::enqueue() const {
  const auto bytes = bytes_of(tensor);
  return receives ? table().recv(lane.comm(), tensor.mutable_data_ptr(), bytes, peer, lane.native())
                  : table().send(lane.comm(), tensor.const_data_ptr(), bytes, peer, lane.native());
}

}  // namespace tefl::ccl
