#include "ccl/packing.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

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

void arrived(const at::Tensor& room, const at::Tensor& tensor) {
  if (!room.is_same(tensor)) unpack(room, {tensor});
}

void require_one_each(const Call& call, const Tensors& parts, const char* what) {
  TORCH_CHECK_VALUE(parts.size() == static_cast<size_t>(call.size), call.name, ": got ", parts.size(), " ",
                    what, ", wants one for each of ", call.size, " ranks");
}

void require_parts(const Call& call, const Tensors& parts, const at::Tensor& whole, const char* what) {
  require_one_each(call, parts, what);
  for (const auto& part : parts) {
    TORCH_CHECK_VALUE(part.numel() == whole.numel() && part.dtype() == whole.dtype(), call.name, ": got ",
                      what, " of ", part.numel(), " x ", part.dtype(), " and of ", whole.numel(), " x ",
                      whole.dtype(), "; all must be alike");
  }
}

void require_multiple(const Call& call, const at::Tensor& large, const at::Tensor& small) {
  TORCH_CHECK_VALUE(large.numel() == small.numel() * call.size && large.dtype() == small.dtype(), call.name,
                    ": got tensors of ", large.numel(), " x ", large.dtype(), " and ", small.numel(), " x ",
                    small.dtype(), "; the one must be ", call.size, " times the other, of one dtype");
}

void require_one(const Call& call, size_t count) {
  TORCH_CHECK_VALUE(count == 1, call.name, ": got ", count, " tensors, wants one: a rank has one device");
}

void require_contiguous(const Call& call, const Tensors& tensors) {
  for (const auto& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.is_contiguous(), call.name, ": got a tensor of sizes ", tensor.sizes(),
                      " and strides ", tensor.strides(), "; pass .contiguous()");
  }
}

void require_multiples(const Call& call, const Tensors& large, const Tensors& small) {
  TORCH_CHECK_VALUE(large.size() == small.size(), call.name, ": got lists of ", large.size(), " and of ",
                    small.size(), " tensors, wants as many in both");
  for (size_t i = 0; i < large.size(); ++i) require_multiple(call, large[i], small[i]);
}

void require_splits(const Call& call, const at::Tensor& tensor, const std::vector<int64_t>& splits) {
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % call.size == 0 && (rows != 0 || tensor.numel() == 0), call.name,
                      ": a first dimension of ", rows, " cannot be split evenly over ", call.size, " ranks");
    return;
  }
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  const bool counts = std::all_of(splits.begin(), splits.end(), [](int64_t split) { return split >= 0; });
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(call.size) && sum == rows && counts, call.name,
                    ": split sizes must be one for each of ", call.size, " ranks and add up to ", rows,
                    ", got ", c10::IntArrayRef(splits));
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
