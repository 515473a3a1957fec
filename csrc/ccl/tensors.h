// Tensors as a process group gets them: the device that they are on, and lists of them as one.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <vector>

#include "ccl/call.h"
#include "device/alias_loan.h"

namespace tefl::ccl {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;

/// Whether `tensor` is what nearly all are, of which nothing else need be asked: ours, in memory, contiguous.
inline bool is_usual(const at::Tensor& tensor) {
  return device::is_ordinary(tensor.unsafeGetTensorImpl()) && tensor.is_contiguous() &&
         tensor.storage().data() != nullptr;
}

/// The device that all tensors of all `lists` are on, which must be one of ours and strided; a ValueError
/// names what is not. None at all: the current one.
c10::Device device_of(const Call& call, std::initializer_list<at::TensorList> lists);

Tensors flat(const Lists& lists);
/// Of lists, one for each rank, everybody's element `i`.
Tensors of_each_rank(const Lists& lists, size_t i);
Tensors concatenated(at::TensorList tensors, at::TensorList more);

}  // namespace tefl::ccl
