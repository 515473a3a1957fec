// Zero-copy twins: one memory, seen as the device's and as the alias device's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/COWDeleter.h>

namespace tefl::device {

/// A Storage labelled `device` over the memory of `source`, which it keeps alive.
c10::Storage alias_storage(const c10::Storage& source, c10::Device device);

/// Makes `alias`, which lies over the memory of `source` without keeping it alive, keep it alive. Where the
/// provider refuses the host access to it, which is warned of, the memory is kept without.
void hold_source(const c10::Storage& alias, const c10::Storage& source) noexcept;

/// What a copy-on-write Storage has once it is written.
void* own_copy(const c10::Storage& storage);
/// Where the bytes of a Storage of our device may be written: a copy-on-write one gets its own copy first, on
/// its own device and not on the current one.
inline void* writable_data(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const bool copies = impl->data_ptr().get_deleter() == &c10::impl::cow::cow_deleter;
  return C10_UNLIKELY(copies) ? own_copy(storage) : impl->mutable_data();
}

/// What frees the memory of `data`: itself, or what the alias that it belongs to was made from.
const c10::DataPtr& owner_of_memory(const c10::DataPtr& data);

/// A new tensor over `storage` with dispatch key `key` and everything else as `like` has it: dtype, sizes,
/// strides, offset, conjugate and negative bits, whether it came from a Python number. No gradient.
at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key);

/// `made`, which nobody else has seen and whose memory is the device's, as a tensor of `device`: it takes the
/// device's label instead of being wrapped.
at::Tensor relabelled(at::Tensor made, c10::Device device);

/// Where a resizing kernel left `original` behind, its memory follows `alias`, and its shape. Not the other
/// way round: a kernel may have resized the original, that it has from from_alias().
void adopt(const at::Tensor& alias, const at::Tensor& original);
/// Only its shape.
void adopt_shape(const at::Tensor& alias, const at::Tensor& original);

/// The alias device's tensor over the memory of `tensor`, which is on our device, after the work of the
/// current stream that might still write it. Writes are seen on both sides. Detached.
at::Tensor as_alias(const at::Tensor& tensor);

/// Our device's tensor over the memory of `tensor`, which is on the alias device: one that as_alias() or a
/// view of its result made, one that a kernel of the alias device was called with for a tensor of ours, or
/// any tensor in memory of our device. A non-negative `index` says which device is meant, and must be the
/// right one. Detached.
at::Tensor from_alias(const at::Tensor& tensor, c10::DeviceIndex index = -1);

}  // namespace tefl::device
