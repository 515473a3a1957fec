// Finds out that ranks call different things, which the libraries beneath answer with a hang or with garbage.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_set>

#include "ccl/call.h"

namespace tefl::ccl {

/// A form is what must be the same on all ranks: the collective, dtype, number of elements, root, reduction.
/// The first call of each form is compared with rank 0's by the store; later ones cost a look into a set.
class Ledger {
 public:
  Ledger(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout)
      : store_(std::move(store)), timeout_(timeout) {}

  /// Throws a DistBackendError that quotes both where rank 0's call of this number has another form, or does
  /// not come within the time-out. `detail` is the rest of the form: root, reduction.
  void compare(const Call& call, const std::string& detail);

  /// What some rank found to be different, as an end for a message; "" where nobody found anything.
  std::string known_difference() noexcept;

  /// Leaves `text` for the other ranks' messages.
  void tell(const std::string& text) noexcept;

 private:
  // Kept as numbers: every call is looked up, and text is made of those alone that are compared.
  struct Form {
    std::string_view name;
    int64_t numel;
    at::ScalarType dtype;
    std::string detail;

    bool operator==(const Form& other) const;
    std::string text() const;
  };
  struct Hash {
    size_t operator()(const Form& form) const;
  };

  bool is_new(const Form& form);

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::unordered_set<Form, Hash> seen_;
};

}  // namespace tefl::ccl
