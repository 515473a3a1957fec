// Aliases for the time of one call, without making any: each thread keeps some that it lends again and again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>

#include "device/address_index.h"

namespace tefl::device {

class Shells;

/// The aliases of one call's tensors, which outlive it: the memory stays theirs. Tensors that share a Storage
/// get aliases that share one, and a tensor passed twice is one alias, so that the alias device's kernels see
/// overlaps and in-place use. An alias that somebody still holds at the end owns its memory from then on, and
/// is not lent again; memory that a kernel gave one, and that the original has not taken, goes with it. Calls
/// nest: the aliases of an inner one go back before those of the outer one.
class LentAliases {
 public:
  LentAliases();
  ~LentAliases();
  LentAliases(const LentAliases&) = delete;
  LentAliases& operator=(const LentAliases&) = delete;

  /// Whether a thread has so many left. It has thousands.
  bool has_more(size_t count) const;
  /// Makes an alias of `tensor`, a strided one of our device `index`, unless there is one;
  /// returns its number.
  size_t lend(const at::Tensor& tensor, c10::DeviceIndex index);

  size_t size() const { return count_; }
  /// By number, one after the other.
  at::Tensor* aliases() const { return aliases_; }
  at::Tensor& alias(size_t number) const { return aliases_[number]; }
  const at::Tensor& original(size_t number) const { return *loans_[number].original; }

  /// The number of the alias that is `tensor`, of one that shares its Storage; -1 for none.
  int64_t find(const at::Tensor& tensor) const;
  int64_t find_storage(const c10::Storage& storage) const;

 private:
  friend class Shells;
  struct Loan {
    c10::Storage own;  // the alias's, whether it lies over it or over an earlier one's
    const at::Tensor* original;
    const c10::StorageImpl* source;  // the original's
    size_t home;                     // the first loan over the same Storage
    int64_t before;                  // the last one over it before this one, or -1
  };
  /// The last alias over `source`, -1 for none.
  int64_t last_over(const c10::StorageImpl* source);
  int64_t find_last_over(const c10::StorageImpl* source);
  /// The next of the thread's aliases, over its own Storage, with no memory yet.
  size_t lend_next(const at::Tensor& tensor, c10::Device device);
  /// Where aliases over the same Storage are lent, `before` the last of them.
  size_t lend_beside(const at::Tensor& tensor, int64_t before);
  /// The number of the alias of `tensor` itself, -1 for none; `before` is the last one over its Storage.
  int64_t alias_of(const at::Tensor& tensor, int64_t before);
  int64_t alias_by_address(const at::Tensor& tensor);
  /// Every alias lies over its own Storage again.
  void give_storages_back() const;
  bool may_be_lent_again(size_t number) const;
  void take_back(size_t number) const;

  Shells& shells_;
  at::Tensor* const aliases_;  // the thread's, from the first that is free on
  Loan* const loans_;
  size_t count_ = 0;
  bool overlap_ = false;                    // some lie over one Storage
  std::unique_ptr<AddressIndex> storages_;  // of the tensors, once a walk is long
  std::unique_ptr<AddressIndex> tensors_;   // once many of them share a Storage
};

/// The first tensor over whose Storage the calling thread has lent aliases that lie over `alias`; null where
/// it is none of theirs. Valid until the call ends for which they were lent.
const at::Tensor* lent_original(const c10::Storage& alias);

}  // namespace tefl::device
