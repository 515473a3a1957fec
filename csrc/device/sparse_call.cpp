#include "device/sparse_call.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <optional>

#include "device/alias_kernel.h"
#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/current_device.h"
#include "device/generator.h"
#include "device/host_redirect.h"
#include "device/provider.h"
#include "device/refused.h"
#include "device/streams.h"

namespace tefl::device {
namespace {

// Replaces every tensor of an argument or a result.
template <typename Replacement>
void replace_tensors(c10::IValue& value, Replacement&& replacement) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = replacement(value.toTensor());
  } else if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (auto& tensor : tensors) tensor = tensor.defined() ? replacement(tensor) : tensor;
    value = std::move(tensors);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> replaced;
    for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor && tensor->defined()) tensor = replacement(*tensor);
      replaced.push_back(std::move(tensor));
    }
    value = std::move(replaced);
  }
}

// A sparse tensor on `device` of the parts given and everything else as `like` has it. No gradient.
at::Tensor sparse_of(const at::Tensor& indices, const at::Tensor& values, const at::Tensor& like,
                     c10::Device device) {
  const auto key = device.type() == kType       ? c10::DispatchKey::SparsePrivateUse1
                   : device.type() == c10::kCPU ? c10::DispatchKey::SparseCPU
                                                : c10::DispatchKey::SparseCUDA;
  const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::make_optional(device));
  auto made = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype());
  const auto* from = at::sparse::get_sparse_impl(like);
  auto* to = at::sparse::get_sparse_impl(made);
  to->raw_resize_(from->sparse_dim(), from->dense_dim(), like.sizes());
  to->set_indices_and_values_unsafe(indices, values);
  to->set_coalesced(from->coalesced());
  return made;
}

void call_sparse_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DeviceIndex index) {
  wait_for_current_stream(index);  // the kernel runs now, on this thread, not in stream order
  const RedirectHostMemory redirect(index);
  op.callBoxed(stack);
}

void call_sparse(const AliasPlan& plan, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ensure_initialized();
  SparseCall call(plan, op);
  call.enter(*stack);
  try {
    const c10::impl::ExcludeDispatchKeyGuard exclude(kOuterKeys);
    if (alias_target().type == c10::kCPU) {
      call_sparse_on_host(op, stack, call.index());
    } else {
      op.callBoxed(stack);
    }
  } catch (c10::NotImplementedError& error) {
    error.add_context(c10::str("while ", op.operator_name(), " ran on ", device_at(call.index())));
    throw;
  }
  call.leave(*stack);
}

}  // namespace

// ----------------------------------------------------------------------------------------- arguments in --

void SparseCall::enter(torch::jit::Stack& stack) {
  c10::IValue* arguments = stack.data() + stack.size() - plan_.arguments;
  for (size_t i = 0; i < plan_.arguments; ++i) {
    replace_tensors(arguments[i], [&](const at::Tensor& tensor) {
      if (index_ < 0 && tensor.device().type() == kType) index_ = tensor.device().index();
      return tensor;
    });
  }
  for (size_t i = 0; i < plan_.arguments; ++i) to_alias(arguments[i], i);
  if (index_ < 0) index_ = current_device();
}

void SparseCall::to_alias(c10::IValue& value, size_t argument) {
  replace_tensors(value, [&](const at::Tensor& tensor) { return alias_of(tensor, argument); });
  if (value.isDevice() && value.toDevice().type() == kType) {
    const auto index = resolve_index(value.toDevice().index());
    if (index_ < 0) index_ = index;
    value = alias_target().device(index);
  } else if (value.isGenerator()) {
    value = inner_generator(value.toGenerator());
  }
}

at::Tensor SparseCall::alias_of(const at::Tensor& tensor, size_t argument) {
  const c10::Device device = tensor.device();
  if (device != device_at(index_)) {
    const bool number = device.is_cpu() && tensor.dim() == 0 && !plan_.writes(argument);
    TORCH_CHECK(number, "Expected all tensors to be on the same device, but found at least two devices, ",
                device_at(index_), " and ", device, "! (when checking argument '",
                op_.schema().arguments()[argument].name(), "' of ", op_.operator_name(), ")");
    return tensor;
  }
  for (Twin& twin : twins_) {
    if (!twin.original.is_same(tensor)) continue;
    twin.written |= plan_.writes(argument);
    return twin.alias;
  }
  auto alias = new_alias(tensor);
  twins_.push_back({alias, tensor, plan_.writes(argument)});
  return alias;
}

at::Tensor SparseCall::new_alias(const at::Tensor& tensor) {
  if (!tensor.is_sparse()) return alias_of_dense(tensor);
  const auto* impl = at::sparse::get_sparse_impl(tensor);
  const auto indices = alias_of_dense(impl->indices()), values = alias_of_dense(impl->values());
  twins_.push_back({indices, impl->indices(), false});
  twins_.push_back({values, impl->values(), false});
  return sparse_of(indices, values, tensor, alias_target().device(index_));
}

at::Tensor SparseCall::alias_of_dense(const at::Tensor& tensor) {
  require_strided(op_, tensor, "got");
  for (const auto& [ours, alias] : storages_) {
    if (ours.is_alias_of(tensor.storage())) return tensor_over(alias, tensor, alias_target().key);
  }
  auto alias = alias_storage(tensor.storage(), alias_target().device(index_));
  storages_.emplace_back(tensor.storage(), alias);
  return tensor_over(std::move(alias), tensor, alias_target().key);
}

// ------------------------------------------------------------------------------------------- results out --

void SparseCall::leave(torch::jit::Stack& stack) {
  for (const Twin& twin : twins_) {
    if (twin.written) give_back(twin);
  }
  for (size_t i = stack.size() - plan_.returns; i < stack.size(); ++i) {
    replace_tensors(stack[i], [this](const at::Tensor& result) { return original_of(result); });
  }
}

at::Tensor SparseCall::original_of(const at::Tensor& result) {
  if (result.device().type() != alias_target().type) return result;
  for (const Twin& twin : twins_) {
    if (twin.alias.is_same(result)) return twin.original;
  }
  if (!result.is_sparse()) return dense_original_of(result);
  const auto* impl = at::sparse::get_sparse_impl(result);
  return sparse_of(original_of(impl->indices()), original_of(impl->values()), result, device_at(index_));
}

at::Tensor SparseCall::dense_original_of(const at::Tensor& result) {
  require_result(op_, result);
  for (const auto& [ours, alias] : storages_) {
    if (alias.is_alias_of(result.storage())) return tensor_over(ours, result, c10::DispatchKey::PrivateUse1);
  }
  auto ours = alias_storage(result.storage(), device_at(index_));
  storages_.emplace_back(ours, result.storage());  // for other results over the same memory
  return tensor_over(std::move(ours), result, c10::DispatchKey::PrivateUse1);
}

void SparseCall::give_back(const Twin& twin) {
  if (twin.alias.is_sparse()) {
    const auto* from = at::sparse::get_sparse_impl(twin.alias);
    auto* to = at::sparse::get_sparse_impl(twin.original);
    const auto indices = original_of(from->indices()), values = original_of(from->values());
    to->raw_resize_(from->sparse_dim(), from->dense_dim(), twin.alias.sizes());
    to->set_indices_and_values_unsafe(indices, values);
    to->set_coalesced(from->coalesced());
    return;
  }
  // Written in place, unless out= was of another size: the alias has memory of its own then.
  if (twin.alias.sizes() == twin.original.sizes()) return;
  const auto made = tensor_over(alias_storage(twin.alias.storage(), device_at(index_)), twin.alias,
                                c10::DispatchKey::PrivateUse1);
  const c10::impl::ExcludeDispatchKeyGuard exclude(kOuterKeys);
  twin.original.resize_(made.sizes());
  twin.original.copy_(made);
}

// ------------------------------------------------------------------------------------------------ kernels --

void SparseKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  call_sparse(plan_, op, stack);
}

void sparse_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_sparse(AliasPlan(op.schema()), op, stack);
}

}  // namespace tefl::device
