// Which of a call's tensors or storages one is.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>

#include "device/address_table.h"

namespace tefl::device {

/// Finds an entry by address: a walk where there are few, a table where there are many (foreach, cat).
class AddressIndex {
 public:
  /// The number `address` was added under, the last time, or -1.
  int64_t find(const void* address) const;
  void add(const void* address);
  size_t size() const { return addresses_.size(); }

 private:
  c10::SmallVector<const void*, 8> addresses_;
  AddressTable table_;  // of all of them, once a walk has become too long
};

}  // namespace tefl::device
