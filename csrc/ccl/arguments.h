// What collectives want of the tensors they are given: ValueErrors that say which came and what is wanted.
#pragma once

#include "ccl/tensors.h"

namespace tefl::ccl {

/// One tensor, since a rank has one device.
void require_one(const Call& call, size_t count);
void require_contiguous(const Call& call, const Tensors& tensors);

/// `parts`, the call's `what`, are as many as there are ranks.
void require_one_each(const Call& call, const Tensors& parts, const char* what);
/// And each is as large as `whole`, and of its dtype.
void require_parts(const Call& call, const Tensors& parts, const at::Tensor& whole, const char* what);

/// Whether all have the same sizes.
bool are_of_one_size(const Tensors& parts);
/// `parts`, the call's `what`, are as many as there are ranks, and of the dtype of `own`; this rank's is as
/// large. PyTorch's group for NCCL does not look at dtypes, and would write out of bounds.
void require_own_part(const Call& call, const Tensors& parts, const at::Tensor& own, const char* what);

/// `large` has a part as large as `small` for each rank.
void require_multiple(const Call& call, const char* large_name, const at::Tensor& large,
                      const char* small_name, const at::Tensor& small);
void require_multiples(const Call& call, const char* large_name, const Tensors& large, const char* small_name,
                       const Tensors& small);

/// `splits` add up to the rows of `tensor`, the call's `name`; where there are none, its rows split evenly.
void require_splits(const Call& call, const char* name, const at::Tensor& tensor,
                    const std::vector<int64_t>& splits);

}  // namespace tefl::ccl
