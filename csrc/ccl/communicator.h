// A communicator of the provider's CCL table: joined on first use, aborted or destroyed in time.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <type_traits>

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
  /// Joins the communicator that rank 0 publishes in `ledger` under `key`, on the device of `call`, which is
  /// the first to need it. Throws where not all ranks come within the ledger's time-out, or it is closed.
  Communicator(const Call& call, const std::string& key, Ledger& ledger);

  tefl_comm get() const { return handle_.get(); }
  /// What made it fail, "" if nothing did.
  std::string error() const;
  void abort(const std::string& reason) const;

 private:
  struct End {
    void operator()(tefl_comm comm) const;
  };
  using Handle = std::unique_ptr<std::remove_pointer_t<tefl_comm>, End>;

  static Handle joined(const Call& call, const tefl_ccl_id& id, std::chrono::milliseconds timeout);

  Handle handle_;
};

}  // namespace tefl::ccl
