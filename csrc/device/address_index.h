// Which of a call's tensors or storages one is.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

namespace tefl::device {

/// Finds an entry by address: a walk where there are few, a hash table where there are many (foreach, cat).
class AddressIndex {
 public:
  /// The number `address` was added under, the last time, or -1.
  int64_t find(const void* address) const;
  void add(const void* address);
  size_t size() const { return addresses_.size(); }

 private:
  static constexpr size_t kWalk = 16;
  size_t slot_of(const void* address) const;
  void enter(size_t number);

  c10::SmallVector<const void*, 8> addresses_;
  std::vector<int32_t> table_;  // numbers, -1 where free, at least every other one; made when a walk is long
};

}  // namespace tefl::device
