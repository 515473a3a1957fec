#include "device/address_index.h"

namespace tefl::device {

int64_t AddressIndex::find(const void* address) const {
  if (!table_.empty()) return table_[slot_of(address)];
  for (size_t i = addresses_.size(); i-- > 0;) {
    if (addresses_[i] == address) return static_cast<int64_t>(i);
  }
  return -1;
}

void AddressIndex::add(const void* address) {
  addresses_.push_back(address);
  const size_t count = addresses_.size();
  if (count <= kWalk) return;
  if (2 * count <= table_.size()) return enter(count - 1);
  table_.assign(table_.empty() ? 8 * kWalk : 4 * table_.size(), -1);
  for (size_t i = 0; i < count; ++i) enter(i);
}

// Where `address` is, or where it would be entered.
size_t AddressIndex::slot_of(const void* address) const {
  const size_t mask = table_.size() - 1;
  const auto bits = reinterpret_cast<uintptr_t>(address);
  size_t slot = ((bits >> 4) * 0x9E3779B97F4A7C15 >> 32) & mask;  // Fibonacci hashing; objects are aligned
  while (table_[slot] >= 0 && addresses_[table_[slot]] != address) slot = (slot + 1) & mask;
  return slot;
}

void AddressIndex::enter(size_t number) {
  table_[slot_of(addresses_[number])] = static_cast<int32_t>(number);
}

}  // namespace tefl::device
