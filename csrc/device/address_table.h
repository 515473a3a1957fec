// Numbers by address, in a hash table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tefl::device {

/// So many entries are found by a walk in less time than by a table.
inline constexpr size_t kWalk = 16;

/// Cleared in constant time, and keeps its capacity: one serves call after call.
class AddressTable {
 public:
  /// The number under `address`, or -1.
  int64_t find(const void* address) const;
  /// Puts `number` under `address`; returns the one that was there, or -1.
  int64_t exchange(const void* address, int64_t number);
  void clear();

 private:
  struct Entry {
    const void* address = nullptr;
    int32_t number = 0;
    uint32_t generation = 0;  // counts where it is the table's
  };
  size_t slot_of(const void* address) const;
  bool is_used(const Entry& entry) const { return entry.generation == generation_; }
  void grow();

  std::vector<Entry> entries_;  // a power of two, at least every other one free; none at first
  size_t used_ = 0;
  uint32_t generation_ = 1;
};

}  // namespace tefl::device
