// Which of a call's tensors or storages one is.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

namespace tefl::device {

/// Numbers by address, in a hash table that is emptied at no cost and keeps its room.
class AddressTable {
 public:
  /// The number under `address`, or -1.
  int64_t find(const void* address) const;
  /// Puts `number` under `address`; returns the one that was there, or -1.
  int64_t put(const void* address, int64_t number);
  void clear();

 private:
  struct Entry {
    const void* address = nullptr;
    int32_t number = 0;
    uint32_t time = 0;  // clear() makes it another one: those of before are free
  };
  C10_ALWAYS_INLINE size_t slot_of(const void* address) const;
  bool is_used(const Entry& entry) const { return entry.time == time_; }
  void grow();

  std::vector<Entry> entries_;  // a power of two, at least every other one free; none at first
  size_t used_ = 0;
  uint32_t time_ = 1;
};

/// Finds an entry by address: a walk where there are few, a table where there are many (foreach, cat).
class AddressIndex {
 public:
  /// The number `address` was added under, the last time, or -1.
  int64_t find(const void* address) const;
  void add(const void* address);
  size_t size() const { return addresses_.size(); }

 private:
  static constexpr size_t kWalk = 16;

  c10::SmallVector<const void*, 8> addresses_;
  AddressTable table_;  // of all of them, once a walk is long
};

}  // namespace tefl::device
