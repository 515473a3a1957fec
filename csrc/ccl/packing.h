// Lists of tensors as one piece of memory and back, and how large the parts of a piece are.
#pragma once

#include "ccl/tensors.h"

namespace tefl::ccl {

uint64_t bytes_of(const at::Tensor& tensor);
std::vector<uint64_t> bytes_of_each(const Tensors& tensors);

/// The bytes of each rank's part of `tensor`, split so.
std::vector<uint64_t> split_bytes(const Call& call, const at::Tensor& tensor,
                                  const std::vector<int64_t>& splits);

/// New memory for the elements of all parts, one at least, made in the current stream.
at::Tensor room_for(const Tensors& parts);
/// The parts, one after another, in new memory. Autograd sees neither this copy nor the one back: a parameter
/// may be sent, and be received into.
at::Tensor packed(const Tensors& parts);
/// The other way.
void unpack(const at::Tensor& all, const Tensors& parts);

/// `tensor` where its elements lie in their order, else a copy of it that does, in `kept`.
at::Tensor in_order(const at::Tensor& tensor, Tensors& kept);
/// Where to put the elements of `tensor` in their order: itself, or memory in `kept` that copy_back() copies
/// from.
at::Tensor room_in_order(const at::Tensor& tensor, Tensors& kept);
void copy_back(const at::Tensor& room, const at::Tensor& tensor);

}  // namespace tefl::ccl
