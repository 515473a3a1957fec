#include "device/alias_loan.h"

#include <tuple>
#include <utility>
#include <vector>

#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/shell.h"

namespace tefl::device {

// What a thread lends: tensors, each with the Storage that is its own. Until they are lent again they lie
// over memory that may be gone. Those that are lent are the first ones, since calls nest.
class Shells {
 public:
  Shells() {
    tensors_.reserve(kMost + kSpare);
    loans_.reserve(kMost + kSpare);
  }
  bool has_more(size_t count) const { return lent_ + count <= kMost; }
  at::Tensor* next_tensor() { return tensors_.data() + lent_; }
  LentAliases::Loan* next_loan() { return loans_.data() + lent_; }
  void lend(c10::Device device) {
    if (C10_UNLIKELY(lent_ == tensors_.size())) make_more(device);
    ++lent_;
  }
  void take_back(const LentAliases* call, size_t count) {
    lent_ -= count;
    if (C10_UNLIKELY(table_is_of_ == call)) table_is_of_ = nullptr;
  }
  /// The last alias over each Storage, for the call that asks: one that is made meanwhile, by a subclass in
  /// Python that is asked for its shape, may have had it.
  AddressTable& table_of(const LentAliases* call) {
    if (C10_UNLIKELY(table_is_of_ != call)) make_table(call);
    return table_;
  }
  const at::Tensor* original_over(const c10::Storage& alias) const {
    for (size_t i = 0; i < lent_; ++i) {
      if (loans_[i].own.unsafeGetStorageImpl() == alias.unsafeGetStorageImpl()) return loans_[i].original;
    }
    return nullptr;
  }

 private:
  // Never moves those that are there: there is room.
  C10_NOINLINE void make_more(c10::Device device) {
    auto [tensor, storage] = new_shell(device);
    tensors_.push_back(std::move(tensor));
    loans_.push_back({std::move(storage), nullptr, nullptr, -1, -1});
  }

  C10_NOINLINE void make_table(const LentAliases* call) {
    table_is_of_ = call;
    table_.clear();
    for (size_t i = 0; i < call->count_; ++i)
      table_.exchange(call->loans_[i].source, static_cast<int64_t>(i));
  }

  static constexpr size_t kMost = 4096;  // an optimizer's lists are some hundreds long
  static constexpr size_t kSpare = 64;   // for copies, which take two and do not ask
  std::vector<at::Tensor> tensors_;
  std::vector<LentAliases::Loan> loans_;
  size_t lent_ = 0;
  AddressTable table_;
  const LentAliases* table_is_of_ = nullptr;
};

namespace {

// Null until the thread lends its first: a pointer is found with one look-up and no guard.
thread_local Shells* shells_here = nullptr;

C10_NOINLINE Shells& first_shells() {
  thread_local Shells shells;
  shells_here = &shells;
  return shells;
}

Shells& shells_of_this_thread() {
  Shells* here = shells_here;
  return C10_LIKELY(here != nullptr) ? *here : first_shells();
}

}  // namespace

LentAliases::LentAliases()
    : shells_(shells_of_this_thread()), aliases_(shells_.next_tensor()), loans_(shells_.next_loan()) {}

bool LentAliases::has_more(size_t count) const { return shells_.has_more(count); }

C10_ALWAYS_INLINE int64_t LentAliases::exchange_last_over(const c10::StorageImpl* source) {
  if (C10_UNLIKELY(count_ > kWalk)) return exchange_last_of_many(source);
  for (size_t i = count_; i-- > 0;) {
    if (loans_[i].source == source) return static_cast<int64_t>(i);
  }
  return -1;
}

C10_ALWAYS_INLINE size_t LentAliases::lend_next(const at::Tensor& tensor, c10::Device device) {
  shells_.lend(device);
  Loan& loan = loans_[count_];
  loan.original = &tensor;
  loan.source = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return count_++;
}

// `device` is not read from the Storage, which may be elsewhere: PyTorch puts what is copied on a write on
// the current device. writable_data() comes first, since it may throw.
C10_ALWAYS_INLINE size_t LentAliases::lend_first(const at::Tensor& tensor, c10::Device device) {
  const c10::TensorImpl* like = tensor.unsafeGetTensorImpl();
  void* const data = writable_data(like->unsafe_storage());
  const size_t number = lend_next(tensor, device);
  const Loan& loan = loans_[number];
  Shell* alias = shell_of(aliases_[number]);
  c10::StorageImpl* own = loan.own.unsafeGetStorageImpl();
  cover_memory(own, {data, device}, loan.source->nbytes());
  const bool resizable = loan.source->resizable();
  if (C10_UNLIKELY(own->resizable() != resizable)) own->set_resizable(resizable);
  if (C10_UNLIKELY(!alias->is_on(device))) alias->set_storage_keep_dtype(loan.own);
  alias->cover(like);
  return number;
}

size_t LentAliases::lend(const at::Tensor& tensor, c10::DeviceIndex index) {
  const c10::Storage& source = tensor.unsafeGetTensorImpl()->unsafe_storage();
  const int64_t before = exchange_last_over(source.unsafeGetStorageImpl());
  if (C10_UNLIKELY(before >= 0)) return lend_beside(tensor, before);
  return lend_first(tensor, alias_target().device(index));
}

size_t LentAliases::lend_prefix(at::TensorList tensors, c10::Device device) {
  const c10::Device alias_device = alias_target().device(device.index());
  size_t lent = 0;
  for (const at::Tensor& tensor : tensors) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (C10_UNLIKELY(!is_ordinary(impl) || impl->device() != device)) break;
    const c10::StorageImpl* source = impl->unsafe_storage().unsafeGetStorageImpl();
    const int64_t before = exchange_last_over(source);
    if (C10_UNLIKELY(before >= 0)) {
      restore_last_over(source, before);
      break;
    }
    lend_first(tensor, alias_device);
    ++lent;
  }
  return lent;
}

C10_NOINLINE size_t LentAliases::lend_beside(const at::Tensor& tensor, int64_t before) {
  const int64_t known = alias_of(tensor, before);
  if (known >= 0) {
    restore_last_over(loans_[known].source, before);
    return static_cast<size_t>(known);
  }
  const int64_t home = is_over_own_storage(before) ? before : loans_[before].home;
  const size_t number = lend_next(tensor, loans_[home].own.device());
  Loan& loan = loans_[number];
  loan.home = home;
  loan.before = before;
  overlap_ = true;
  Shell* alias = shell_of(aliases_[number]);
  alias->set_storage_keep_dtype(loans_[home].own);
  alias->cover(tensor.unsafeGetTensorImpl());
  return number;
}

int64_t LentAliases::exchange_last_of_many(const c10::StorageImpl* source) {
  return shells_.table_of(this).exchange(source, static_cast<int64_t>(count_));
}

void LentAliases::restore_last_over(const c10::StorageImpl* source, int64_t number) {
  if (count_ > kWalk) shells_.table_of(this).exchange(source, number);
}

int64_t LentAliases::alias_of(const at::Tensor& tensor, int64_t before) {
  size_t steps = 0;
  for (int64_t i = before; i >= 0; i = loans_[i].before) {
    if (loans_[i].original->is_same(tensor)) return i;
    if (++steps == kWalk) return alias_by_address(tensor);
  }
  return -1;
}

int64_t LentAliases::alias_by_address(const at::Tensor& tensor) {
  if (tensors_ == nullptr) tensors_ = std::make_unique<AddressIndex>();
  for (size_t i = tensors_->size(); i < count_; ++i) {
    tensors_->add(loans_[i].original->unsafeGetTensorImpl());
  }
  return tensors_->find(tensor.unsafeGetTensorImpl());
}

int64_t LentAliases::find(const at::Tensor& tensor) const {
  for (size_t i = 0; i < count_; ++i) {
    if (aliases_[i].is_same(tensor)) return static_cast<int64_t>(i);
  }
  return -1;
}

int64_t LentAliases::find_storage(const c10::Storage& storage) const {
  for (size_t i = 0; i < count_; ++i) {
    if (is_over_own_storage(i) && loans_[i].own.is_alias_of(storage)) return static_cast<int64_t>(i);
  }
  return -1;
}

LentAliases::~LentAliases() {
  if (C10_UNLIKELY(overlap_)) give_storages_back();
  for (size_t i = 0; i < count_; ++i) {
    if (C10_UNLIKELY(!is_as_new(aliases_[i], loans_[i].own))) take_back(i);
  }
  if (C10_UNLIKELY(overlap_)) forget_overlap();
  shells_.take_back(this, count_);
}

// Between calls all are -1, so that lend_first() need not write them.
void LentAliases::forget_overlap() const {
  for (size_t i = 0; i < count_; ++i) loans_[i].home = loans_[i].before = -1;
}

// Before any is taken back: an alias over another one's Storage holds it, and take_back() would think that
// somebody else does. An alias that somebody does hold keeps it.
void LentAliases::give_storages_back() const {
  for (size_t i = 0; i < count_; ++i) {
    if (is_over_own_storage(i) || aliases_[i].use_count() != 1) continue;
    shell_of(aliases_[i])->set_storage_keep_dtype(loans_[i].own);
  }
}

// Throws nothing: hold_source() does not, and a tensor is small.
C10_NOINLINE void LentAliases::take_back(size_t number) const {
  Loan& loan = loans_[number];
  at::Tensor& alias = aliases_[number];
  if (may_be_lent_again(alias, loan.own)) return shell_of(alias)->clear_bits();
  // With memory of its own, the call has failed or it was not to be written.
  if (is_over_own_storage(number) && !has_own_memory(loan.own.unsafeGetStorageImpl())) {
    hold_source(loan.own, loan.original->storage());
  }
  std::tie(alias, loan.own) = new_shell(loan.own.device());
}

const at::Tensor* lent_original(const c10::Storage& alias) {
  return shells_here == nullptr ? nullptr : shells_here->original_over(alias);
}

}  // namespace tefl::device
