// Tensors as a process group gets them: the device that they are on, and lists of them as one.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <vector>

#include "ccl/call.h"

namespace tefl::ccl {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;

/// The device that all tensors of all `lists` are on, which must be one of ours and strided; a ValueError
/// names what is not. None at all: the current one.
c10::Device device_of(const Call& call, std::initializer_list<at::TensorList> lists);

Tensors flat(const Lists& lists);
/// Of lists, one for each rank, everybody's element `i`.
Tensors of_each_rank(const Lists& lists, size_t i);
Tensors concatenated(at::TensorList tensors, at::TensorList more);

}  // namespace tefl::ccl
