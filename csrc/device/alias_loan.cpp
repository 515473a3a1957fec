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

// A tensor that is lent: it takes over another one's shape and dtype, and what follows from them, as it is.
class Shell final : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;

  /// All but the Storage and its device.
  void cover(const c10::TensorImpl* like) {
    if (C10_UNLIKELY(like->key_set().has(c10::DispatchKey::Python))) {
      take_over_what_it_says(like);
    } else {
      const auto device = device_opt_;
      copy_generic_tensor_metadata(like, this);
      device_opt_ = device;
      if (C10_UNLIKELY(extra_meta_ != nullptr)) extra_meta_.reset();  // names, and what a backend keeps
    }
    if (C10_UNLIKELY(like->is_conj())) _set_conj(true);
    if (C10_UNLIKELY(like->is_neg())) _set_neg(true);
  }
  /// What the next tensor may not have, undone while the dtype still allows it.
  void clear_bits() {
    if (C10_UNLIKELY(is_conj())) _set_conj(false);
    if (C10_UNLIKELY(is_neg())) _set_neg(false);
  }

 private:
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

void cover_memory(c10::StorageImpl* alias, const c10::Storage& source, c10::Device device) {
  const c10::StorageImpl* impl = source.unsafeGetStorageImpl();
  alias->set_data_ptr_noswap(c10::DataPtr(writable_data(source), device));
  alias->set_nbytes(impl->nbytes());
  alias->set_resizable(impl->resizable());
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
    if (C10_UNLIKELY(lent_ == tensors_.size())) {  // never moves them: there is room
      auto [tensor, storage] = new_shell(device);
      tensors_.push_back(std::move(tensor));
      loans_.push_back({std::move(storage), nullptr, 0, -1});
    }
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

size_t LentAliases::lend(const at::Tensor& tensor) {
  const c10::Storage& source = tensor.unsafeGetTensorImpl()->unsafe_storage();
  const int64_t before = storages_.find(source.unsafeGetStorageImpl());
  const int64_t known = before < 0 ? -1 : alias_of(tensor, before);
  if (known >= 0) return static_cast<size_t>(known);
  const c10::Device device = alias_target().device(tensor.device().index());
  shells_.lend(device);
  storages_.add(source.unsafeGetStorageImpl());
  const size_t number = count_++;
  Loan& loan = loans_[number];
  loan.original = &tensor;
  loan.home = before < 0 ? number : loans_[before].home;
  loan.before = before;
  if (before < 0) cover_memory(loan.own.unsafeGetStorageImpl(), source, device);
  Shell* alias = shell_of(aliases_[number]);
  if (C10_UNLIKELY(before >= 0 || alias->device() != device)) {
    alias->set_storage_keep_dtype(loans_[loan.home].own);
    overlap_ |= before >= 0;
  }
  alias->cover(tensor.unsafeGetTensorImpl());
  return number;
}

int64_t LentAliases::alias_of(const at::Tensor& tensor, int64_t before) {
  constexpr int kWalk = 16;  // as far as a table is slower
  int steps = 0;
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
  for (size_t i = 0; i < count_; ++i) take_back(i);
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

// Throws nothing: hold_source() does not, and a tensor is small.
void LentAliases::take_back(size_t number) const {
  Loan& loan = loans_[number];
  at::Tensor& alias = aliases_[number];
  const bool held = alias.use_count() != 1 || loan.own.use_count() != 2;
  // Memory of its own: a kernel resized it, and the call has failed or it was not to be written.
  const bool resized =
      loan.own.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_context() != nullptr;
  if (C10_LIKELY(!held && !resized && !is_seen_by_python(alias, loan.own))) {
    return shell_of(alias)->clear_bits();
  }
  if (loan.home == number && !resized) hold_source(loan.own, loan.original->storage());
  std::tie(alias, loan.own) = new_shell(loan.own.device());
}

const at::Tensor* lent_original(const c10::Storage& alias) {
  return shells_of_this_thread().original_over(alias);
}

}  // namespace tefl::device
