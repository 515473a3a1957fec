// A communicator of the provider's CCL table: joined on first use, aborted or destroyed in time.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ccl/call.h"
#include "ccl/ledger.h"
#include "tefl_provider.h"

namespace tefl::ccl {

/// The provider's table; only where it has one.
const tefl_ccl& table();
bool has_table();

/// Throws a DistBackendError with the provider's message where `status` is an error.
void check(tefl_status status, const Call& call);

class Communicator {
 public:
  /// Joins the communicator that rank 0 announces in `store` under `key`, for `call`, which is the first to
  /// need it. Throws where not all ranks come within `timeout`, with what `ledger` knows of it.
  Communicator(const Call& call, c10d::Store& store, const std::string& key, c10::DeviceIndex device,
               std::chrono::milliseconds timeout, Ledger& ledger);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  tefl_comm get() const { return comm_; }
  /// What made it fail, "" if nothing did.
  std::string error() const;
  void abort(const std::string& reason) const;

 private:
  tefl_comm comm_ = nullptr;
};

}  // namespace tefl::ccl
