#include "device/views.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "device/allocator.h"
#include "device/current_device.h"

namespace tefl::device {
namespace {

at::Tensor& set_storage(at::Tensor& self, at::Storage source) { return at::native::set_(self, source); }

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
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
  aten.impl("as_strided", at::native::as_strided_tensorimpl);
  aten.impl("view", at::native::view);
  aten.impl("_reshape_alias", at::native::_reshape_alias);
  aten.impl("unfold", at::native::unfold);
  aten.impl("view_as_real", at::native::view_as_real);
  aten.impl("view_as_complex", at::native::view_as_complex);
  aten.impl("set_", set_nothing);
  aten.impl("set_.source_Tensor", set_tensor);
  aten.impl("set_.source_Storage", set_storage);
  aten.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  aten.impl("record_stream", record_stream);
  aten.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

}  // namespace tefl::device
