// Kinds of tensors that the device has not got.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace tefl::device {

/// The dispatch keys of sparse, quantized and nested tensors of the device.
constexpr c10::DispatchKey kRefusedKeys[] = {
    c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCsrPrivateUse1,
    c10::DispatchKey::QuantizedPrivateUse1, c10::DispatchKey::NestedTensorPrivateUse1};

/// A kernel for any operator that meets a tensor of `key`: an error that names device, operator and kind.
torch::CppFunction refusal(c10::DispatchKey key);

}  // namespace tefl::device
