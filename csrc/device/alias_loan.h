// Aliases for the time of one call, without making any: each thread keeps some that it lends again and again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>

#include "device/address_index.h"
#include "device/address_table.h"

namespace tefl::device {

class Shells;

/// What a tensor of the device has, unless it is of a kind of its own.
constexpr c10::DispatchKeySet kOurs(c10::DispatchKey::PrivateUse1);

/// Whether `tensor` is a dense one of our device and of no subclass in Python, so that its fields are the
/// truth.
inline bool is_ordinary(const c10::TensorImpl* tensor) {
  const c10::DispatchKeySet keys = tensor->key_set();
  return keys.has_all(kOurs) && !keys.has(c10::DispatchKey::Python) && tensor->unsafe_storage();
}

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
  /// Lends the longest prefix of `tensors` that is ordinary, on `device`, and shares no Storage with what is
  /// lent; returns its length. The numbers are consecutive. Wants has_more(tensors.size()).
  size_t lend_prefix(at::TensorList tensors, c10::Device device);

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
    c10::StorageImpl* source;  // the original's
    int64_t home;              // the first loan over the same Storage; -1: this one
    int64_t before;            // the last one over it before this one, or -1
  };
  /// Or over an earlier one's.
  bool is_over_own_storage(size_t number) const { return loans_[number].home < 0; }
  /// The last alias over `source`, -1 for none. The next one lent counts as the last from now on: who lends
  /// none calls restore_last_over().
  int64_t exchange_last_over(const c10::StorageImpl* source);
  int64_t exchange_last_of_many(const c10::StorageImpl* source);
  void restore_last_over(const c10::StorageImpl* source, int64_t number);
  /// An alias of a tensor whose Storage none is over.
  size_t lend_first(const at::Tensor& tensor, c10::Device device);
  /// The next of the thread's aliases, over its own Storage, with no memory yet.
  size_t lend_next(const at::Tensor& tensor, c10::Device device);
  /// Where aliases over the same Storage are lent, `before` the last of them.
  size_t lend_beside(const at::Tensor& tensor, int64_t before);
  /// The number of the alias of `tensor` itself, -1 for none; `before` is the last one over its Storage.
  int64_t alias_of(const at::Tensor& tensor, int64_t before);
  int64_t alias_by_address(const at::Tensor& tensor);
  /// Every alias lies over its own Storage again.
  void give_storages_back() const;
  void forget_overlap() const;
  void take_back(size_t number) const;

  Shells& shells_;
  at::Tensor* const aliases_;  // the thread's, from the first that is free on
  Loan* const loans_;
  size_t count_ = 0;
  bool overlap_ = false;                   // some lie over one Storage
  std::unique_ptr<AddressIndex> tensors_;  // once many of them share a Storage
};

/// The first tensor over whose Storage the calling thread has lent aliases that lie over `alias`; null where
/// it is none of theirs. Valid until the call ends for which they were lent.
const at::Tensor* lent_original(const c10::Storage& alias);

}  // namespace tefl::device
