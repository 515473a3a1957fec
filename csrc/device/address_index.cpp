#include "device/address_index.h"

namespace tefl::device {

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
  for (size_t i = first; i < count; ++i) table_.exchange(addresses_[i], static_cast<int64_t>(i));
}

}  // namespace tefl::device
