#include "device/sparse.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/resize_as_sparse_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <memory>
#include <optional>

#include "device/alias_target.h"
#include "device/current_device.h"
#include "device/implement.h"
#include "device/sparse_call.h"

namespace tefl::device {
namespace {

std::optional<c10::Device> if_ours(c10::Device device) {
  return device.type() == kType ? std::make_optional(device) : std::nullopt;
}
std::optional<c10::Device> device_in(const at::Tensor& tensor) { return if_ours(tensor.device()); }
std::optional<c10::Device> device_in(std::optional<c10::Device> device) {
  return device && device->has_index() ? if_ours(*device) : std::nullopt;
}
template <typename Other>
std::optional<c10::Device> device_in(const Other&) {
  return std::nullopt;
}

// PyTorch's own function for a sparse tensor of any device, with that device current: parts are made there.
template <auto function>
struct OnItsDevice;
template <typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct OnItsDevice<function> {
  static Result call(Arguments... arguments) {
    std::optional<c10::Device> device;
    ((device = device ? device : device_in(arguments)), ...);
    const c10::OptionalDeviceGuard guard(device);
    return function(std::forward<Arguments>(arguments)...);
  }
};

template <auto function>
void implement_native(torch::Library& sparse, const char* name) {
  sparse.impl(name, &OnItsDevice<function>::call);
}

// What a sparse tensor is made of, and copies, of which one side may be on another device.
void register_structure(torch::Library& sparse) {
  implement_native<at::native::empty_sparse>(sparse, "empty.memory_format");
  implement_native<at::native::empty_like_sparse_coo>(sparse, "empty_like");
  implement_native<at::native::new_with_dims_sparse>(sparse, "_sparse_coo_tensor_with_dims");
  implement_native<at::native::new_with_dims_and_tensor_sparse_symint>(
      sparse, "_sparse_coo_tensor_with_dims_and_tensors");
  implement_native<at::native::sparse_dim_sparse>(sparse, "sparse_dim");
  implement_native<at::native::dense_dim_sparse>(sparse, "dense_dim");
  implement_native<at::native::_nnz_sparse>(sparse, "_nnz");
  implement_native<at::native::is_coalesced_sparse>(sparse, "is_coalesced");
  implement_native<at::native::_coalesced_sparse_>(sparse, "_coalesced_");
  implement_native<at::native::_indices_sparse>(sparse, "_indices");
  implement_native<at::native::_values_sparse>(sparse, "_values");
  implement_native<at::native::indices_sparse>(sparse, "indices");
  implement_native<at::native::values_sparse>(sparse, "values");
  implement_native<at::native::sparse_resize_>(sparse, "sparse_resize_");
  implement_native<at::native::sparse_resize_and_clear_>(sparse, "sparse_resize_and_clear_");
  implement_native<at::native::resize_as_sparse_>(sparse, "resize_as_sparse_");
  implement_native<at::native::clone_sparse>(sparse, "clone");
  implement_native<at::native::copy_sparse_wrapper_>(sparse, "copy_");
  implement_native<at::native::copy_sparse_>(sparse, "copy_sparse_to_sparse_");
}

c10::DispatchKey sparse_alias_key() {
  return alias_target().type == c10::kCPU ? c10::DispatchKey::SparseCPU : c10::DispatchKey::SparseCUDA;
}

torch::CppFunction sparse_kernel(const c10::OperatorHandle& op) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<SparseKernel>(op.schema()));
}

// Of dense tensors they make sparse ones, or may.
void register_makers(torch::Library& dense) {
  auto& dispatcher = c10::Dispatcher::singleton();
  implement(dense, "_to_sparse", sparse_kernel(dispatcher.findSchemaOrThrow("aten::_to_sparse", "")));
  implement(dense, "_to_sparse.sparse_dim",
            sparse_kernel(dispatcher.findSchemaOrThrow("aten::_to_sparse", "sparse_dim")));
  implement(dense, "_embedding_bag_backward",
            sparse_kernel(dispatcher.findSchemaOrThrow("aten::_embedding_bag_backward", "")));
  if (alias_target().type == c10::kCPU)
    implement(dense, "_spdiags", sparse_kernel(dispatcher.findSchemaOrThrow("aten::_spdiags", "")));
}

}  // namespace

void register_sparse(torch::Library& sparse, torch::Library& dense, torch::Library& any) {
  register_structure(sparse);
  register_makers(dense);
  any.fallback(torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>());
}

void register_sparse_operator(torch::Library& sparse, const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::SparsePrivateUse1)) return;
  if (!op.hasKernelForDispatchKey(sparse_alias_key())) return;
  sparse.impl(c10::toString(op.operator_name()).c_str(), sparse_kernel(op));
}

}  // namespace tefl::device
