// A tensor that takes over another one's shape and dtype, and what follows from them: to lend, or to keep.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/AutogradState.h>
#include <c10/core/TensorImpl.h>

#include <new>
#include <utility>

namespace tefl::device {

/// Tensors made while it lives are ordinary ones, as in-place kernels want them, also in inference mode.
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

class Shell final : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;

  /// Takes over all of `like` but the Storage and its device. Throws where its shape is one of symbols.
  C10_ALWAYS_INLINE void cover(const c10::TensorImpl* like) {
    if (C10_UNLIKELY(extra_meta_ != nullptr)) extra_meta_.reset();  // names, and what a backend keeps
    const bool unusual = like->key_set().has_any(kUnusual) || like->has_symbolic_sizes_strides();
    if (C10_UNLIKELY(unusual)) return cover_unusual(like);
    copy_metadata(like);
  }
  bool is_on(c10::Device device) const { return device_opt_ == device; }
  bool has_bits() const { return key_set_.has_any(kBits); }
  /// What the next tensor may not have, undone while the dtype still allows it.
  void clear_bits() {
    if (is_conj()) _set_conj(false);
    if (is_neg()) _set_neg(false);
  }

 private:
  static constexpr c10::DispatchKeySet kBits{c10::DispatchKey::Conjugate, c10::DispatchKey::Negative};
  // Whose shape is not in their fields, or not all of it.
  static constexpr c10::DispatchKeySet kUnusual =
      kBits | c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::NestedTensor});

  // TensorImpl::copy_generic_tensor_metadata() for a tensor without symbols, less its extra metadata: that
  // one is called and not inlined, and this is for each argument of each operator. All is read before
  // anything is written, since for all the compiler knows `like` may be this tensor.
  C10_ALWAYS_INLINE void copy_metadata(const c10::TensorImpl* like) {
    constexpr auto kSizes = &Shell::sizes_and_strides_;  // a protected member of another TensorImpl
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
  }
  void cover_unusual(const c10::TensorImpl* like);
};

/// A tensor of the alias device, a Shell, and its Storage, without memory.
std::pair<at::Tensor, c10::Storage> new_shell(c10::Device device);

/// Of what new_shell() or tensor_over() made.
inline Shell* shell_of(const at::Tensor& alias) { return static_cast<Shell*>(alias.unsafeGetTensorImpl()); }

/// An alias that is lent has no memory of its own, unless a kernel resized it.
inline bool has_own_memory(c10::StorageImpl* alias) {
  return alias->_mutable_data_ptr_no_checks().get_context() != nullptr;
}

/// Whether nobody else holds an alias, nor the Storage that is its own. Their objects in Python remember: a
/// kernel written in Python may have looked at them.
C10_ALWAYS_INLINE bool may_be_lent_again(const at::Tensor& alias, const c10::Storage& own) {
  c10::StorageImpl* storage = own.unsafeGetStorageImpl();
  return alias.use_count() == 1 && own.use_count() == 2 && !has_own_memory(storage) &&
         alias.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() == nullptr &&
         storage->pyobj_slot()->load_pyobj() == nullptr;
}
/// And it has no bits that the next tensor may not have.
C10_ALWAYS_INLINE bool is_as_new(const at::Tensor& alias, const c10::Storage& own) {
  return may_be_lent_again(alias, own) && !shell_of(alias)->has_bits();
}

/// Puts the Storage of an alias that may be lent over `data`. The pointer is made anew over the old one,
/// whose destructor is not to run: the alias owns no memory, whatever the pointer says.
inline void cover_memory(c10::StorageImpl* alias, c10::DataPtr data, size_t bytes) {
  new (&alias->_mutable_data_ptr_no_checks()) c10::DataPtr(std::move(data));
  alias->unsafe_set_nbytes(bytes);
}

}  // namespace tefl::device
