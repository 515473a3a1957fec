// Sparse tensors of the device in coordinate form: torch.sparse_coo.
#pragma once

#include <torch/library.h>

namespace tefl::device {

/// Gives the device sparse tensors, where the alias device can reach its memory. What a sparse tensor is made
/// of is on the device; operators run through SparseCall. `sparse` and `dense` take kernels of aten, `any`
/// the fallback. Call it before the alias kernels are registered.
void register_sparse(torch::Library& sparse, torch::Library& dense, torch::Library& any);

/// Lets `op`, of aten, compute on sparse tensors, if the alias device's can and it does not yet. After
/// register_sparse().
void register_sparse_operator(torch::Library& sparse, const c10::OperatorHandle& op);

}  // namespace tefl::device
