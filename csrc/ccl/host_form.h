// Tensors in the forms that gloo takes, over the same memory.
#pragma once

#include "ccl/tensors.h"

namespace tefl::ccl {

/// A ValueError where as_movable() cannot have `tensor`.
void require_movable_on_host(const Call& call, const at::Tensor& tensor);
/// For what only moves elements: types that gloo does not know become bytes, which wants contiguous tensors.
/// The first dimension keeps its meaning where there is one.
at::Tensor as_movable(at::Tensor tensor);
Tensors as_movable(Tensors tensors);
Lists as_movable(Lists lists);

/// Without shape, which gloo would compare: elements one after another. What is not contiguous stays.
Tensors without_shape(Tensors tensors);
bool are_contiguous(at::TensorList tensors);

/// How many elements each has.
std::vector<int64_t> counts_of(const Tensors& tensors);

}  // namespace tefl::ccl
