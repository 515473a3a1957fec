#include "device/address_index.h"

#include <utility>

namespace tefl::device {

// Where `address` is, or where it would be put.
size_t AddressTable::slot_of(const void* address) const {
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

int64_t AddressTable::put(const void* address, int64_t number) {
  if (C10_UNLIKELY(2 * (used_ + 1) > entries_.size())) grow();
  Entry& entry = entries_[slot_of(address)];
  const int64_t before = is_used(entry) ? entry.number : -1;
  if (before < 0) ++used_;
  entry = {address, static_cast<int32_t>(number), time_};
  return before;
}

void AddressTable::clear() {
  used_ = 0;
  if (C10_LIKELY(++time_ != 0)) return;
  entries_.assign(entries_.size(), Entry{});  // or those of four billion times ago would be back
  time_ = 1;
}

C10_NOINLINE void AddressTable::grow() {
  constexpr size_t kFirst = 128;
  std::vector<Entry> before(entries_.empty() ? kFirst : 4 * entries_.size());
  before.swap(entries_);
  for (const Entry& entry : before) {
    if (is_used(entry)) entries_[slot_of(entry.address)] = entry;
  }
}

int64_t AddressIndex::find(const void* address) const {
  if (addresses_.size() > kWalk) return table_.find(address);
  for (size_t i = addresses_.size(); i-- > 0;) {
    if (addresses_[i] == address) return static_cast<int64_t>(i);
  }
  return -1;
}

void AddressIndex::add(const void* address) {
  addresses_.push_back(address);
  const size_t count = addresses_.size();
  if (count <= kWalk) return;
  const size_t first = count == kWalk + 1 ? 0 : count - 1;
  for (size_t i = first; i < count; ++i) table_.put(addresses_[i], static_cast<int64_t>(i));
}

}  // namespace tefl::device
