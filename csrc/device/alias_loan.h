// Aliases for the time of one call, without making any: each thread keeps some that it lends again and again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include "device/address_index.h"

namespace tefl::device {

class Shells;

/// The aliases of one call's tensors, which outlive it: the memory stays theirs. Tensors that share a Storage
/// get aliases that share one, and a tensor passed twice is one alias, so that the alias device's kernels see
/// overlaps and in-place use. An alias that somebody still holds at the end owns its memory from then on, and
/// is not lent again.
class LentAliases {
 public:
  LentAliases() = default;
  ~LentAliases();
  LentAliases(const LentAliases&) = delete;
  LentAliases& operator=(const LentAliases&) = delete;

  /// Makes an alias of `tensor`, a strided one of our device, unless there is one; returns its number.
  size_t lend(const at::Tensor& tensor);

  size_t size() const { return loans_.size(); }
  /// By number, one after the other; valid until the next lend().
  at::Tensor* aliases() { return aliases_.data(); }
  at::Tensor& alias(size_t number) { return aliases_[number]; }
  const at::Tensor& original(size_t number) const { return *loans_[number].original; }

  /// The number of the alias that is `tensor`, of one that shares its Storage; -1 for none.
  int64_t find(const at::Tensor& tensor) const;
  int64_t find_storage(const c10::Storage& storage) const;

 private:
  struct Loan {
    const at::Tensor* original;
    c10::Storage own;  // the alias's, whether it lies over it or over an earlier one's
    size_t home;       // the first loan over the same Storage
    int64_t before;    // the last one over it before this one, or -1
  };
  void take_back(size_t number);

  Shells* shells_ = nullptr;  // the thread's, once something was lent
  c10::SmallVector<at::Tensor, 4> aliases_;
  c10::SmallVector<Loan, 4> loans_;
  AddressIndex storages_;  // of the tensors
};

}  // namespace tefl::device
