#include "ccl/communicator.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <future>
#include <iterator>
#include <thread>

#include "device/lifetime.h"
#include "device/provider.h"

namespace tefl::ccl {
namespace {

// Rank 0's id, by way of the ledger's store.
tefl_ccl_id agree_on_id(const Call& call, const std::string& key, Ledger& ledger) {
  tefl_ccl_id id{};
  if (call.rank == 0) {
    check(table().get_unique_id(&id), call);
    ledger.publish(key, {std::begin(id.bytes), std::end(id.bytes)});
    return id;
  }
  const auto bytes = ledger.awaited(call, key, ledger.timeout());
  if (bytes.empty()) {
    fail(call, "rank 0 has not begun a communicator within " + std::to_string(ledger.timeout().count()) +
                   " ms: it made no such call, did not start, or ended, or the store does not answer");
  }
  std::copy_n(bytes.begin(), std::min(bytes.size(), sizeof(id.bytes)), std::begin(id.bytes));
  return id;
}

}  // namespace

bool has_table() { return device::active().ccl != nullptr; }

const tefl_ccl& table() { return *device::active().ccl; }

void check(tefl_status status, const Call& call) {
  if (status != TEFL_OK) fail(call, device::provider_reason(status));
}

// Joining waits for the other ranks, and the table has no way to end that: it is left to a thread of its own
// where the call is given up.
Communicator::Communicator(const Call& call, const std::string& key, Ledger& ledger) {
  const auto id = agree_on_id(call, key, ledger);
  std::packaged_task<Handle()> join(
      [call, id, timeout = ledger.timeout()] { return joined(call, id, timeout); });
  auto handle = join.get_future();
  std::thread(std::move(join)).detach();
  for (auto nap = kFirstLook; handle.wait_for(nap) != std::future_status::ready;
       nap = std::min(2 * nap, kLongestLook)) {
    ledger.require_open(call);
    const auto difference = ledger.known_difference(call);
    if (!difference.empty()) fail(call, "given up before all ranks had joined the communicator" + difference);
  }
  try {
    handle_ = handle.get();
  } catch (...) {
    fail(call, reason_of(std::current_exception()) + ledger.known_difference(call));
  }
}

void Communicator::End::operator()(tefl_comm comm) const {
  if (device::may_release()) table().destroy(comm);
}

Communicator::Handle Communicator::joined(const Call& call, const tefl_ccl_id& id,
                                          std::chrono::milliseconds timeout) {
  const c10::DeviceGuard on(call.device);
  tefl_comm comm = nullptr;
  const auto status =
      table().init_rank(&id, call.size, call.rank, call.device.index(), timeout.count(), &comm);
  if (status != TEFL_OK) throw std::runtime_error(device::provider_reason(status));
  return Handle(comm);
}

std::string Communicator::error() const {
  const auto status = table().async_error(get());
  return status == TEFL_OK ? "" : device::provider_reason(status);
}

void Communicator::abort(const std::string& reason) const { table().abort(get(), reason.c_str()); }

}  // namespace tefl::ccl
