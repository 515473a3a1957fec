#include "device/alias_loan.h"

#include <c10/core/AutogradState.h>

#include <tuple>
#include <utility>
#include <vector>

#include "device/alias_storage.h"
#include "device/alias_target.h"

namespace tefl::device {
namespace {

// Tensors made while it lives are ordinary ones, as in-place kernels want them, also in inference mode.
class OutsideInferenceMode {
 public:
  OutsideInferenceMode() : before_(c10::AutogradState::get_tls_state()) {
    c10::AutogradState outside = before_;
    outside.set_inference_mode(false);
    c10::AutogradState::set_tls_state(outside);
  }
  ~OutsideInferenceMode() { c10::AutogradState::set_tls_state(before_); }
  OutsideInferenceMode(const OutsideInferenceMode&) = delete;
  OutsideInferenceMode& operator=(const OutsideInferenceMode&) = delete;

 private:
  const c10::AutogradState before_;
};

constexpr size_t kWalk = 16;  // as far as a table is slower

constexpr c10::DispatchKeySet kBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
constexpr c10::DispatchKeySet kUnusual = kBits | c10::DispatchKeySet(c10::DispatchKey::Python);

// A tensor that is lent: it takes over another one's shape and dtype, and what follows from them, as it is.
class Shell final : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;

  /// All but the Storage and its device.
  void cover(const c10::TensorImpl* like) {
    if (C10_UNLIKELY(like->key_set().has_any(kUnusual))) return cover_unusual(like);
    copy_all_but_device(like);
  }
  bool is_on(c10::Device device) const { return device_opt_ == device; }
  bool has_bits() const { return key_set_.has_any(kBits); }
  /// What the next tensor may not have, undone while the dtype still allows it.
  void clear_bits() {
    if (is_conj()) _set_conj(false);
    if (is_neg()) _set_neg(false);
  }

 private:
  void copy_all_but_device(const c10::TensorImpl* like) {
    const auto device = device_opt_;
    copy_generic_tensor_metadata(like, this);
    device_opt_ = device;
    if (C10_UNLIKELY(extra_meta_ != nullptr)) extra_meta_.reset();  // names, and what a backend keeps
  }
  C10_NOINLINE void cover_unusual(const c10::TensorImpl* like) {
    if (like->key_set().has(c10::DispatchKey::Python)) {
      take_over_what_it_says(like);
    } else {
      copy_all_but_device(like);
    }
    if (like->is_conj()) _set_conj(true);
    if (like->is_neg()) _set_neg(true);
  }
  // A subclass in Python may have a shape of its own, or one of symbols, which is an error.
  void take_over_what_it_says(const c10::TensorImpl* like) {
    set_sizes_and_strides(like->sizes(), like->strides(), like->storage_offset());
    data_type_ = like->dtype();
    is_wrapped_number_ = like->is_wrapped_number();
  }
};

// Of what new_shell() made.
Shell* shell_of(const at::Tensor& alias) { return static_cast<Shell*>(alias.unsafeGetTensorImpl()); }

// A tensor of the alias device, and its Storage.
std::pair<at::Tensor, c10::Storage> new_shell(c10::Device device) {
  const OutsideInferenceMode scope;
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device),
                       c10::GetAllocator(device.type()), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<Shell>(c10::Storage(storage), c10::DispatchKeySet(alias_target().key),
                                               caffe2::TypeMeta::Make<float>());
  return {std::move(tensor), std::move(storage)};
}

// An alias has no memory of its own, unless a kernel resized it.
bool has_own_memory(c10::StorageImpl* alias) {
  return alias->_mutable_data_ptr_no_checks().get_context() != nullptr;
}

void cover_memory(c10::StorageImpl* alias, const c10::Storage& source, c10::Device device) {
  const c10::StorageImpl* impl = source.unsafeGetStorageImpl();
  alias->_mutable_data_ptr_no_checks() = c10::DataPtr(writable_data(source), device);
  alias->unsafe_set_nbytes(impl->nbytes());
  if (C10_UNLIKELY(alias->resizable() != impl->resizable())) alias->set_resizable(impl->resizable());
}

// A kernel written in Python may have looked at it, and Python objects remember.
bool is_seen_by_python(const at::Tensor& tensor, const c10::Storage& storage) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr ||
         storage.unsafeGetStorageImpl()->pyobj_slot()->load_pyobj() != nullptr;
}

}  // namespace

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
  void take_back(size_t count) { lent_ -= count; }
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
    loans_.push_back({std::move(storage), nullptr, nullptr, 0, -1});
  }

  static constexpr size_t kMost = 4096;  // an optimizer's lists are some hundreds long
  static constexpr size_t kSpare = 64;   // for copies, which take two and do not ask
  std::vector<at::Tensor> tensors_;
  std::vector<LentAliases::Loan> loans_;
  size_t lent_ = 0;
};

namespace {

Shells& shells_of_this_thread() {
  thread_local Shells shells;
  return shells;
}

}  // namespace

LentAliases::LentAliases()
    : shells_(shells_of_this_thread()), aliases_(shells_.next_tensor()), loans_(shells_.next_loan()) {}

bool LentAliases::has_more(size_t count) const { return shells_.has_more(count); }

// Its Storage may be elsewhere by now: PyTorch puts what is copied on a write on the current device.
size_t LentAliases::lend(const at::Tensor& tensor, c10::DeviceIndex index) {
  const c10::Storage& source = tensor.unsafeGetTensorImpl()->unsafe_storage();
  const int64_t before = last_over(source.unsafeGetStorageImpl());
  if (C10_UNLIKELY(before >= 0)) return lend_beside(tensor, before);
  const c10::Device device = alias_target().device(index);
  const size_t number = lend_next(tensor, device);
  Loan& loan = loans_[number];
  loan.home = number;
  loan.before = -1;
  Shell* alias = shell_of(aliases_[number]);
  cover_memory(loan.own.unsafeGetStorageImpl(), source, device);
  if (C10_UNLIKELY(!alias->is_on(device))) alias->set_storage_keep_dtype(loan.own);
  alias->cover(tensor.unsafeGetTensorImpl());
  return number;
}

size_t LentAliases::lend_next(const at::Tensor& tensor, c10::Device device) {
  shells_.lend(device);
  Loan& loan = loans_[count_];
  loan.original = &tensor;
  loan.source = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return count_++;
}

C10_NOINLINE size_t LentAliases::lend_beside(const at::Tensor& tensor, int64_t before) {
  const int64_t known = alias_of(tensor, before);
  if (known >= 0) return static_cast<size_t>(known);
  const size_t home = loans_[before].home;
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

int64_t LentAliases::last_over(const c10::StorageImpl* source) {
  if (C10_UNLIKELY(count_ > kWalk)) return find_last_over(source);
  for (size_t i = count_; i-- > 0;) {
    if (loans_[i].source == source) return static_cast<int64_t>(i);
  }
  return -1;
}

C10_NOINLINE int64_t LentAliases::find_last_over(const c10::StorageImpl* source) {
  if (storages_ == nullptr) storages_ = std::make_unique<AddressIndex>();
  for (size_t i = storages_->size(); i < count_; ++i) storages_->add(loans_[i].source);
  return storages_->find(source);
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
    if (loans_[i].home == i && loans_[i].own.is_alias_of(storage)) return static_cast<int64_t>(i);
  }
  return -1;
}

LentAliases::~LentAliases() {
  if (C10_UNLIKELY(overlap_)) give_storages_back();
  for (size_t i = 0; i < count_; ++i) {
    if (C10_UNLIKELY(!may_be_lent_again(i) || shell_of(aliases_[i])->has_bits())) take_back(i);
  }
  shells_.take_back(count_);
}

// Before any is taken back: an alias over another one's Storage holds it, and take_back() would think that
// somebody else does. An alias that somebody does hold keeps it.
void LentAliases::give_storages_back() const {
  for (size_t i = 0; i < count_; ++i) {
    if (loans_[i].home == i || aliases_[i].use_count() != 1) continue;
    shell_of(aliases_[i])->set_storage_keep_dtype(loans_[i].own);
  }
}

// Whether nobody else holds it.
bool LentAliases::may_be_lent_again(size_t number) const {
  const at::Tensor& alias = aliases_[number];
  const c10::Storage& own = loans_[number].own;
  return alias.use_count() == 1 && own.use_count() == 2 && !has_own_memory(own.unsafeGetStorageImpl()) &&
         !is_seen_by_python(alias, own);
}

// Throws nothing: hold_source() does not, and a tensor is small.
C10_NOINLINE void LentAliases::take_back(size_t number) const {
  Loan& loan = loans_[number];
  at::Tensor& alias = aliases_[number];
  if (may_be_lent_again(number)) return shell_of(alias)->clear_bits();
  // With memory of its own, the call has failed or it was not to be written.
  if (loan.home == number && !has_own_memory(loan.own.unsafeGetStorageImpl())) {
    hold_source(loan.own, loan.original->storage());
  }
  std::tie(alias, loan.own) = new_shell(loan.own.device());
}

const at::Tensor* lent_original(const c10::Storage& alias) {
  return shells_of_this_thread().original_over(alias);
}

}  // namespace tefl::device
