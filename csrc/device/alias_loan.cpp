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
  C10_ALWAYS_INLINE void cover(const c10::TensorImpl* like) {
    const bool unusual = like->key_set().has_any(kUnusual) || like->has_symbolic_sizes_strides();
    if (C10_UNLIKELY(unusual)) return cover_unusual(like);
    take_over(like);
  }
  bool is_on(c10::Device device) const { return device_opt_ == device; }
  bool has_bits() const { return key_set_.has_any(kBits); }
  /// What the next tensor may not have, undone while the dtype still allows it.
  void clear_bits() {
    if (is_conj()) _set_conj(false);
    if (is_neg()) _set_neg(false);
  }

 private:
  // What PyTorch's copy_generic_tensor_metadata() copies of a tensor that has nothing of its own about it, in
  // a third of the instructions: this is for each argument of each operator. All is read before anything is
  // written, so that the compiler knows that nothing changes meanwhile.
  C10_ALWAYS_INLINE void take_over(const c10::TensorImpl* like) {
    constexpr auto kSizes = &Shell::sizes_and_strides_;
    const bool contiguous = like->is_contiguous_default(at::MemoryFormat::Contiguous);
    const bool channels_last = like->is_contiguous_default(at::MemoryFormat::ChannelsLast);
    const bool channels_last_3d = like->is_contiguous_default(at::MemoryFormat::ChannelsLast3d);
    const bool like_channels_last = like->is_strides_like_default(at::MemoryFormat::ChannelsLast);
    const bool like_channels_last_3d = like->is_strides_like_default(at::MemoryFormat::ChannelsLast3d);
    const bool dense = like->is_non_overlapping_and_dense_default();
    const bool number = like->is_wrapped_number();
    const int64_t offset = like->storage_offset_default();
    const int64_t count = like->numel_default();
    const caffe2::TypeMeta dtype = like->dtype();
    sizes_and_strides_ = like->*kSizes;
    storage_offset_ = offset;
    numel_ = count;
    data_type_ = dtype;
    is_contiguous_ = contiguous;
    is_channels_last_contiguous_ = channels_last;
    is_channels_last_3d_contiguous_ = channels_last_3d;
    is_channels_last_ = like_channels_last;
    is_channels_last_3d_ = like_channels_last_3d;
    is_non_overlapping_and_dense_ = dense;
    is_wrapped_number_ = number;
    if (C10_UNLIKELY(extra_meta_ != nullptr)) extra_meta_.reset();  // names, and what a backend keeps
  }
  // A subclass in Python may have a shape of its own; one of symbols is an error.
  C10_NOINLINE void cover_unusual(const c10::TensorImpl* like) {
    set_sizes_and_strides(like->sizes(), like->strides(), like->storage_offset());
    data_type_ = like->dtype();
    is_wrapped_number_ = like->is_wrapped_number();
    if (like->is_conj()) _set_conj(true);
    if (like->is_neg()) _set_neg(true);
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

// The pointer that was there is overwritten, not assigned to: there is nothing of its own to free.
void cover_memory(c10::StorageImpl* alias, void* data, size_t bytes, c10::Device device) {
  new (&alias->_mutable_data_ptr_no_checks()) c10::DataPtr(data, device);
  alias->unsafe_set_nbytes(bytes);
}

// A kernel written in Python may have looked at it, and Python objects remember.
bool is_seen_by_python(const at::Tensor& tensor, const c10::Storage& storage) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr ||
         storage.unsafeGetStorageImpl()->pyobj_slot()->load_pyobj() != nullptr;
}

// Whether nobody else holds an alias, nor the Storage that is its own.
C10_ALWAYS_INLINE bool may_be_lent_again(const at::Tensor& alias, const c10::Storage& own) {
  return alias.use_count() == 1 && own.use_count() == 2 && !has_own_memory(own.unsafeGetStorageImpl()) &&
         !is_seen_by_python(alias, own);
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
  void take_back(const LentAliases* call, size_t count) {
    lent_ -= count;
    if (C10_UNLIKELY(table_is_of_ == call)) table_is_of_ = nullptr;
  }
  /// The last alias over each Storage, for the call that asks: one that is made meanwhile, by a subclass in
  /// Python that is asked for its device, may have had it.
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
    for (size_t i = 0; i < call->count_; ++i) table_.put(call->loans_[i].source, static_cast<int64_t>(i));
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

C10_ALWAYS_INLINE int64_t LentAliases::last_over(const c10::StorageImpl* source) {
  if (C10_UNLIKELY(count_ > kWalk)) return last_of_many_over(source);
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

// Its Storage may be elsewhere by now: PyTorch puts what is copied on a write on the current device.
C10_ALWAYS_INLINE size_t LentAliases::lend_first(const at::Tensor& tensor, c10::Device device) {
  const c10::TensorImpl* like = tensor.unsafeGetTensorImpl();
  void* const data = writable_data(like->unsafe_storage());
  const size_t number = lend_next(tensor, device);
  const Loan& loan = loans_[number];
  Shell* alias = shell_of(aliases_[number]);
  c10::StorageImpl* own = loan.own.unsafeGetStorageImpl();
  cover_memory(own, data, loan.source->nbytes(), device);
  const bool resizable = loan.source->resizable();
  if (C10_UNLIKELY(own->resizable() != resizable)) own->set_resizable(resizable);
  if (C10_UNLIKELY(!alias->is_on(device))) alias->set_storage_keep_dtype(loan.own);
  alias->cover(like);
  return number;
}

size_t LentAliases::lend(const at::Tensor& tensor, c10::DeviceIndex index) {
  const c10::Storage& source = tensor.unsafeGetTensorImpl()->unsafe_storage();
  const int64_t before = last_over(source.unsafeGetStorageImpl());
  if (C10_UNLIKELY(before >= 0)) return lend_beside(tensor, before);
  return lend_first(tensor, alias_target().device(index));
}

size_t LentAliases::lend_row(at::TensorList tensors, c10::Device device) {
  const c10::Device alias_device = alias_target().device(device.index());
  size_t lent = 0;
  for (const at::Tensor& tensor : tensors) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (C10_UNLIKELY(!is_plain(impl) || impl->device() != device)) break;
    const c10::StorageImpl* source = impl->unsafe_storage().unsafeGetStorageImpl();
    const int64_t before = last_over(source);
    if (C10_UNLIKELY(before >= 0)) {
      last_stays(source, before);
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
    last_stays(loans_[known].source, before);
    return static_cast<size_t>(known);
  }
  const int64_t home = is_first(before) ? before : loans_[before].home;
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

int64_t LentAliases::last_of_many_over(const c10::StorageImpl* source) {
  return shells_.table_of(this).put(source, static_cast<int64_t>(count_));
}

// For one that is not lent after all.
void LentAliases::last_stays(const c10::StorageImpl* source, int64_t number) {
  if (count_ > kWalk) shells_.table_of(this).put(source, number);
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
    if (is_first(i) && loans_[i].own.is_alias_of(storage)) return static_cast<int64_t>(i);
  }
  return -1;
}

LentAliases::~LentAliases() {
  if (C10_UNLIKELY(overlap_)) give_storages_back();
  for (size_t i = 0; i < count_; ++i) {
    const bool ready = may_be_lent_again(aliases_[i], loans_[i].own) && !shell_of(aliases_[i])->has_bits();
    if (C10_UNLIKELY(!ready)) take_back(i);
  }
  if (C10_UNLIKELY(overlap_)) forget_overlap();
  shells_.take_back(this, count_);
}

void LentAliases::forget_overlap() const {
  for (size_t i = 0; i < count_; ++i) loans_[i].home = loans_[i].before = -1;
}

// Before any is taken back: an alias over another one's Storage holds it, and take_back() would think that
// somebody else does. An alias that somebody does hold keeps it.
void LentAliases::give_storages_back() const {
  for (size_t i = 0; i < count_; ++i) {
    if (is_first(i) || aliases_[i].use_count() != 1) continue;
    shell_of(aliases_[i])->set_storage_keep_dtype(loans_[i].own);
  }
}

// Throws nothing: hold_source() does not, and a tensor is small.
C10_NOINLINE void LentAliases::take_back(size_t number) const {
  Loan& loan = loans_[number];
  at::Tensor& alias = aliases_[number];
  if (may_be_lent_again(alias, loan.own)) return shell_of(alias)->clear_bits();
  // With memory of its own, the call has failed or it was not to be written.
  if (is_first(number) && !has_own_memory(loan.own.unsafeGetStorageImpl())) {
    hold_source(loan.own, loan.original->storage());
  }
  std::tie(alias, loan.own) = new_shell(loan.own.device());
}

const at::Tensor* lent_original(const c10::Storage& alias) {
  return shells_of_this_thread().original_over(alias);
}

}  // namespace tefl::device
