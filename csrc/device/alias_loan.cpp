#include "device/alias_loan.h"

#include <c10/core/AutogradState.h>

#include <utility>
#include <vector>

#include "device/alias_storage.h"
#include "device/alias_target.h"

namespace tefl::device {
namespace {

constexpr size_t kKeptShells = 512;  // a thread's; an optimizer's lists are some hundreds long

thread_local std::vector<Shell> shells;

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

Shell new_shell(c10::Device device) {
  const OutsideInferenceMode scope;
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device),
                       c10::GetAllocator(device.type()), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(alias_target().key), caffe2::TypeMeta::Make<float>());
  return {std::move(tensor), std::move(storage)};
}

Shell take_shell(c10::Device device) {
  if (C10_UNLIKELY(shells.empty())) return new_shell(device);
  Shell shell = std::move(shells.back());
  shells.pop_back();
  return shell;
}

void cover_memory(c10::StorageImpl* alias, const c10::Storage& source, c10::Device device) {
  const c10::StorageImpl* impl = source.unsafeGetStorageImpl();
  alias->set_data_ptr_noswap(c10::DataPtr(writable_data(source), device));
  alias->set_nbytes(impl->nbytes());
  alias->set_resizable(impl->resizable());
}

void cover_shape(c10::TensorImpl* alias, const c10::TensorImpl* like) {
  if (alias->sizes() != like->sizes() || alias->strides() != like->strides()) {
    alias->set_sizes_and_strides(like->sizes(), like->strides(), like->storage_offset());
  } else if (alias->storage_offset() != like->storage_offset()) {
    alias->set_storage_offset(like->storage_offset());
  }
  if (C10_UNLIKELY(like->is_conj())) alias->_set_conj(true);
  if (C10_UNLIKELY(like->is_neg())) alias->_set_neg(true);
  if (C10_UNLIKELY(like->is_wrapped_number())) alias->set_wrapped_number(true);
}

// What the next tensor may not have, undone while shape and dtype still allow it.
void clear_bits(c10::TensorImpl* alias) {
  if (C10_UNLIKELY(alias->is_conj())) alias->_set_conj(false);
  if (C10_UNLIKELY(alias->is_neg())) alias->_set_neg(false);
  if (C10_UNLIKELY(alias->is_wrapped_number())) alias->set_wrapped_number(false);
}

// A kernel written in Python may have looked at it, and Python objects remember.
bool is_seen_by_python(const Shell& shell) {
  return shell.tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr ||
         shell.storage.unsafeGetStorageImpl()->pyobj_slot()->load_pyobj() != nullptr;
}

}  // namespace

size_t LentAliases::lend(const at::Tensor& tensor) {
  const int64_t known = originals_.find(tensor.unsafeGetTensorImpl());
  if (known >= 0) return static_cast<size_t>(known);
  const size_t number = loans_.size();
  const c10::Device device = alias_target().device(tensor.device().index());
  Shell shell = take_shell(device);
  const c10::Storage& source = tensor.storage();
  const int64_t shared = storages_.find(source.unsafeGetStorageImpl());
  const size_t home = shared < 0 ? number : loans_[shared].home;
  if (home == number) cover_memory(shell.storage.unsafeGetStorageImpl(), source, device);
  c10::TensorImpl* alias = shell.tensor.unsafeGetTensorImpl();
  const c10::Storage& storage = home == number ? shell.storage : loans_[home].shell.storage;
  if (home != number || alias->device() != device || alias->dtype() != tensor.dtype()) {
    alias->set_storage_and_dtype(storage, tensor.dtype());
  }
  cover_shape(alias, tensor.unsafeGetTensorImpl());
  originals_.add(tensor.unsafeGetTensorImpl());
  storages_.add(source.unsafeGetStorageImpl());
  loans_.push_back({std::move(shell), &tensor, home});
  return number;
}

int64_t LentAliases::find(const at::Tensor& tensor) const {
  for (size_t i = 0; i < loans_.size(); ++i) {
    if (loans_[i].shell.tensor.is_same(tensor)) return static_cast<int64_t>(i);
  }
  return -1;
}

int64_t LentAliases::find_storage(const c10::Storage& storage) const {
  for (size_t i = 0; i < loans_.size(); ++i) {
    if (loans_[i].home == i && loans_[i].shell.storage.is_alias_of(storage)) return static_cast<int64_t>(i);
  }
  return -1;
}

LentAliases::~LentAliases() {
  for (Loan& loan : loans_) {
    if (loan.shell.tensor.use_count() != 1) continue;
    clear_bits(loan.shell.tensor.unsafeGetTensorImpl());
    const bool away = loan.home != static_cast<size_t>(&loan - loans_.begin());
    if (away) loan.shell.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(loan.shell.storage);
  }
  for (size_t i = 0; i < loans_.size(); ++i) take_back(loans_[i], i);
}

void LentAliases::take_back(Loan& loan, size_t number) {
  Shell& shell = loan.shell;
  const bool held = shell.tensor.use_count() != 1 || shell.storage.use_count() != 2;
  if (C10_LIKELY(!held && !is_seen_by_python(shell))) {
    if (shells.size() < kKeptShells) shells.push_back(std::move(shell));
  } else if (loan.home == number) {
    hold_source(shell.storage, loan.original->storage());
  }
}

}  // namespace tefl::device
