// The values of a kernel's parameters, laid out as launch functions want them.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <cstring>

namespace tefl::launch {

/// A signature has one letter for each parameter of the kernel:
///   p  pointer      i  int32      l  int64      f  float32      d  float64
///   0  pointer that is always null and for which the caller passes nothing
class Arguments {
 public:
  template <typename T>
  void add(T value) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a parameter is at most eight bytes");
    uint64_t slot = 0;
    std::memcpy(&slot, &value, sizeof(T));  // a reader of fewer bytes finds them at the slot's start
    values_.push_back(slot);
  }

  uint32_t size() const { return static_cast<uint32_t>(values_.size()); }

  /// One pointer for each value; they live as long as `this` is neither changed nor moved.
  c10::SmallVector<void*, 24> pointers() const {
    c10::SmallVector<void*, 24> result;
    for (const uint64_t& value : values_) result.push_back(const_cast<uint64_t*>(&value));
    return result;
  }

 private:
  c10::SmallVector<uint64_t, 24> values_;
};

}  // namespace tefl::launch
