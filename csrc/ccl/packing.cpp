#include "ccl/packing.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

namespace tefl::ccl {

uint64_t bytes_of(const at::Tensor& tensor) { return tensor.nbytes(); }

at::Tensor room_for(const Tensors& parts) {
  int64_t count = 0;
  for (const auto& part : parts) count += part.numel();
  return at::empty({count}, parts.front().options());
}

at::Tensor packed(const Tensors& parts) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto all = room_for(parts);
  int64_t begin = 0;
  for (const auto& part : parts) {
    all.narrow(0, begin, part.numel()).copy_(part.reshape({-1}), /*non_blocking=*/true);
    begin += part.numel();
  }
  return all;
}

void unpack(const at::Tensor& all, const Tensors& parts) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  int64_t begin = 0;
  for (auto part : parts) {
    part.copy_(all.narrow(0, begin, part.numel()).view(part.sizes()), /*non_blocking=*/true);
    begin += part.numel();
  }
}

at::Tensor in_order(const at::Tensor& tensor, Tensors& kept) {
  return tensor.is_contiguous() ? tensor : kept.emplace_back(packed({tensor}));
}

at::Tensor room_in_order(const at::Tensor& tensor, Tensors& kept) {
  return tensor.is_contiguous() ? tensor : kept.emplace_back(room_for({tensor}));
}

void copy_back(const at::Tensor& room, const at::Tensor& tensor) {
  if (!room.is_same(tensor)) unpack(room, {tensor});
}

std::vector<uint64_t> split_bytes(const Call& call, const at::Tensor& tensor,
                                  const std::vector<int64_t>& splits) {
  if (splits.empty()) return std::vector<uint64_t>(call.size, bytes_of(tensor) / call.size);
  const uint64_t row = tensor.numel() == 0 ? 0 : bytes_of(tensor) / tensor.size(0);
  std::vector<uint64_t> bytes;
  for (const auto split : splits) bytes.push_back(split * row);
  return bytes;
}

std::vector<uint64_t> bytes_of_each(const Tensors& tensors) {
  std::vector<uint64_t> bytes;
  for (const auto& tensor : tensors) bytes.push_back(bytes_of(tensor));
  return bytes;
}

}  // namespace tefl::ccl
