// Kinds of tensors that the device has not got.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string>

#include "device/provider.h"

namespace tefl::device {

/// The dispatch keys of sparse, quantized and nested tensors of the device. Those in coordinate form it has
/// after all where its memory can be computed on (device/sparse.h).
constexpr c10::DispatchKey kRefusedKeys[] = {
    c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCsrPrivateUse1,
    c10::DispatchKey::QuantizedPrivateUse1, c10::DispatchKey::NestedTensorPrivateUse1};

/// A kernel for any operator that meets a tensor of `key`: an error that names device, operator and kind.
torch::CppFunction refusal(c10::DispatchKey key);

/// Whether `tensor` is of none of these kinds, wherever it is. Quantized and nested ones say of themselves
/// that their layout is strided.
inline bool is_strided(const at::Tensor& tensor) {
  return tensor.has_storage() && !tensor.is_quantized() && !tensor.is_nested();
}

/// "Sparse", "a nested one": what kind of tensor it is, for a message.
std::string layout_of(const at::Tensor& tensor);

/// Refuses a tensor that `op` got or made on the alias device and that is of such a kind: "maca:
/// aten::to_sparse returns a tensor of layout Sparse; only strided ones are supported".
[[noreturn]] void refuse(const c10::OperatorHandle& op, const at::Tensor& tensor, const char* verb);
inline void require_strided(const c10::OperatorHandle& op, const at::Tensor& tensor, const char* verb) {
  if (C10_UNLIKELY(!is_strided(tensor))) refuse(op, tensor, verb);
}

/// Refuses a result that is of such a kind, or of a subclass in Python, whose memory is not to be relied on:
/// the device has no such class.
inline void require_result(const c10::OperatorHandle& op, const at::Tensor& result) {
  require_strided(op, result, "returns");
  TORCH_CHECK_NOT_IMPLEMENTED(!result.unsafeGetTensorImpl()->is_python_dispatch(), device_name(), ": ",
                              op.operator_name(), " returns a tensor of a subclass in Python; kernels that ",
                              "run for the device must return plain tensors");
}

}  // namespace tefl::device
