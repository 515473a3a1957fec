#include "ccl/communicator.h"

#include <algorithm>
#include <cstring>

#include "device/lifetime.h"
#include "device/provider.h"

namespace tefl::ccl {
namespace {

// Rank 0's id, by way of the store.
tefl_ccl_id agree_on_id(const Call& call, c10d::Store& store, const std::string& key,
                        std::chrono::milliseconds timeout) {
  tefl_ccl_id id{};
  if (call.rank == 0) {
    check(table().get_unique_id(&id), call);
    store.set(key, std::vector<uint8_t>(std::begin(id.bytes), std::end(id.bytes)));
    return id;
  }
  try {
    store.wait({key}, timeout);
  } catch (const std::exception& error) {
    fail(call, "rank 0 has not begun a communicator within " + std::to_string(timeout.count()) +
                   " ms: it made no such call, did not start, or ended (" + error.what() + ")");
  }
  const auto bytes = store.get(key);
  std::copy_n(bytes.begin(), std::min(bytes.size(), sizeof(id.bytes)), std::begin(id.bytes));
  return id;
}

}  // namespace

bool has_table() { return device::active().ccl != nullptr; }

const tefl_ccl& table() { return *device::active().ccl; }

void check(tefl_status status, const Call& call) {
  if (status != TEFL_OK) fail(call, device::provider_reason(status));
}

Communicator::Communicator(const Call& call, c10d::Store& store, const std::string& key,
                           c10::DeviceIndex device, std::chrono::milliseconds timeout, Ledger& ledger) {
  const auto id = agree_on_id(call, store, key, timeout);
  const auto status = table().init_rank(&id, call.size, call.rank, device, timeout.count(), &comm_);
  if (status != TEFL_OK) fail(call, device::provider_reason(status) + ledger.known_difference());
}

Communicator::~Communicator() {
  if (comm_ != nullptr && device::may_release()) table().destroy(comm_);
}

std::string Communicator::error() const {
  const auto status = table().async_error(comm_);
  return status == TEFL_OK ? "" : device::provider_reason(status);
}

void Communicator::abort(const std::string& reason) const { table().abort(comm_, reason.c_str()); }

}  // namespace tefl::ccl
