// Aliases for the time of one call, without making any: each thread keeps some that it lends again and again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include "device/address_index.h"

namespace tefl::device {

/// A tensor of the alias device and the Storage that is its own. Between two calls it lies over memory that
/// may be gone.
struct Shell {
  at::Tensor tensor;
  c10::Storage storage;
};

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
  /// Valid until the next lend().
  at::Tensor& alias(size_t number) { return loans_[number].shell.tensor; }
  const at::Tensor& original(size_t number) const { return *loans_[number].original; }

  /// The number of the alias that is `tensor`, of one that shares its Storage; -1 for none.
  int64_t find(const at::Tensor& tensor) const;
  int64_t find_storage(const c10::Storage& storage) const;

 private:
  struct Loan {
    Shell shell;
    const at::Tensor* original;
    size_t home;  // the number of the loan whose Storage the alias lies over: its own, or an earlier one's
  };
  void take_back(Loan& loan, size_t number);

  c10::SmallVector<Loan, 4> loans_;
  AddressIndex originals_, storages_;  // by number of loan
};

}  // namespace tefl::device
