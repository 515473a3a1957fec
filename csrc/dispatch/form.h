// What a call looks like from outside: everything about its arguments but the numbers in its tensors.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <cstring>

namespace tefl::dispatch {

// The policy token, then for each argument its kind and, of a tensor, dtype, device, sizes, strides and
// whether its address is a multiple of 16 bytes, of anything else the value. Two calls of one op are alike if
// and only if their forms are equal.
class Form {
 public:
  // Describes the arguments of a call. False where there is one that cannot be described: an object of
  // another type, a tensor that is not strided or whose sizes are symbols.
  bool describe(int64_t token, const c10::IValue* arguments, size_t count);

  int64_t token() const { return words_[0]; }
  uint64_t hash() const { return hash_; }
  bool operator==(const Form& other) const {
    return words_.size() == other.words_.size() &&
           std::memcmp(words_.data(), other.words_.data(), words_.size() * sizeof(int64_t)) == 0;
  }

 private:
  bool add(const c10::IValue& value);
  bool add(const at::Tensor& tensor);
  void push(int64_t word) { words_.push_back(word); }

  c10::SmallVector<int64_t, 64> words_;
  uint64_t hash_ = 0;
};

}  // namespace tefl::dispatch
