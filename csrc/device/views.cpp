#include "device/views.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include <algorithm>

#include "device/alias_target.h"
#include "device/allocator.h"
#include "device/copy.h"
#include "device/current_device.h"
#include "device/implement.h"

namespace tefl::device {
namespace {

at::Tensor& set_storage(at::Tensor& self, at::Storage source) { return at::native::set_(self, source); }

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

// Here and below the storage grows by a copy on the device before the CPU's function, which would copy on the
// host, looks at it.
void grow(const at::Storage& storage, size_t bytes) {
  if (bytes > storage.nbytes() && storage.resizable()) resize_storage(storage, bytes);
}

bool any_negative(at::IntArrayRef numbers) {
  return std::any_of(numbers.begin(), numbers.end(), [](int64_t number) { return number < 0; });
}

// Where the shape stays, or is none, the CPU's function grows nothing and raises.
bool may_grow(const at::Tensor& self, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  if (offset < 0 || any_negative(size) || any_negative(stride)) return false;
  if (!stride.empty() && stride.size() != size.size()) return false;
  return self.sizes() != size || (!stride.empty() && self.strides() != stride);
}

at::Tensor& set_storage_at(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                           at::IntArrayRef stride) {
  if (may_grow(self, offset, size, stride)) {
    grow(source, stride.size() == size.size()
                     ? at::detail::computeStorageNbytes(size, stride, self.itemsize(), offset)
                     : at::detail::computeStorageNbytesContiguous(size, self.itemsize(), offset));
  }
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  const auto before = static_cast<int64_t>(self.storage().nbytes());
  if (may_grow(self, 0, size, {})) {
    grow(self.storage(),
         at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset()));
  }
  at::native::resize_(self, size, format);
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    at::native::fill_resize_deterministic_(self, before);
  }
  return self;
}

at::Tensor& set_nothing(at::Tensor& self) {
  c10::Storage empty(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, self.device()), &allocator(),
                     /*resizable=*/true);
  return at::native::set_storage_cpu_(self, std::move(empty), 0, {0}, {});
}

void record_stream(at::Tensor& self, at::Stream stream) {
  allocator().recordStream(self.storage().data_ptr(), stream);
}

bool is_dense(const at::Tensor& tensor) {
  const auto type = tensor.device().type();
  const bool known = type == kType || type == c10::kCPU || type == c10::kCUDA;
  const auto* impl = tensor.unsafeGetTensorImpl();
  return known && tensor.layout() == at::kStrided && impl->has_storage() && !impl->is_python_dispatch();
}

// module.to(device) may put the moved data into the parameters that are there, as between CPU and CUDA: so
// parameters keep their identity, tied weights stay tied, and optimizers keep what they hold.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  if (is_dense(self) && is_dense(from)) return true;
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

}  // namespace

void register_views(torch::Library& aten) {
  implement(aten, "as_strided", at::native::as_strided_tensorimpl);
  implement(aten, "view", at::native::view);
  implement(aten, "_reshape_alias", at::native::_reshape_alias);
  implement(aten, "unfold", at::native::unfold);
  implement(aten, "view_as_real", at::native::view_as_real);
  implement(aten, "view_as_complex", at::native::view_as_complex);
  implement(aten, "set_", set_nothing);
  implement(aten, "set_.source_Tensor", set_tensor);
  implement(aten, "set_.source_Storage", set_storage);
  implement(aten, "set_.source_Storage_storage_offset", set_storage_at);
  implement(aten, "record_stream", record_stream);
  // On a copy only what the tensor had before would be known.
  if (alias_target().copies) implement(aten, "resize_", resize);
  implement(aten, "_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

}  // namespace tefl::device
