#include "device/address_table.h"

#include <c10/macros/Macros.h>

namespace tefl::device {

// Where `address` is, or where it would be put.
C10_ALWAYS_INLINE size_t AddressTable::slot_of(const void* address) const {
  const size_t mask = entries_.size() - 1;
  const auto bits = reinterpret_cast<uintptr_t>(address);
  size_t slot = ((bits >> 4) * 0x9E3779B97F4A7C15 >> 32) & mask;  // Fibonacci hashing; objects are aligned
  while (is_used(entries_[slot]) && entries_[slot].address != address) slot = (slot + 1) & mask;
  return slot;
}

int64_t AddressTable::find(const void* address) const {
  if (entries_.empty()) return -1;
  const Entry& entry = entries_[slot_of(address)];
  return is_used(entry) ? entry.number : -1;
}

int64_t AddressTable::exchange(const void* address, int64_t number) {
  if (C10_UNLIKELY(2 * (used_ + 1) > entries_.size())) grow();
  Entry& entry = entries_[slot_of(address)];
  const int64_t before = is_used(entry) ? entry.number : -1;
  if (before < 0) ++used_;
  entry = {address, static_cast<int32_t>(number), generation_};
  return before;
}

void AddressTable::clear() {
  used_ = 0;
  if (C10_LIKELY(++generation_ != 0)) return;
  entries_.assign(entries_.size(), Entry{});  // or those of four billion calls ago would count
  generation_ = 1;
}

C10_NOINLINE void AddressTable::grow() {
  constexpr size_t kFirst = 128;
  std::vector<Entry> before(entries_.empty() ? kFirst : 4 * entries_.size());
  before.swap(entries_);
  for (const Entry& entry : before) {
    if (is_used(entry)) entries_[slot_of(entry.address)] = entry;
  }
}

}  // namespace tefl::device
