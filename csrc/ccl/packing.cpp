#include "ccl/packing.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

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

std::vector<uint64_t> split_bytes(const Call& call, const at::Tensor& tensor,
                                  const std::vector<int64_t>& splits) {
  if (splits.empty()) {
    TORCH_CHECK_VALUE(tensor.numel() == 0 || tensor.size(0) % call.size == 0, call.name,
                      ": a first dimension of ", tensor.dim() == 0 ? 0 : tensor.size(0),
                      " cannot be split evenly over ", call.size, " ranks");
    return std::vector<uint64_t>(call.size, bytes_of(tensor) / call.size);
  }
  const int64_t rows = tensor.size(0);
  const uint64_t row = rows == 0 ? 0 : bytes_of(tensor) / rows;
  std::vector<uint64_t> bytes;
  int64_t sum = 0;
  for (const auto split : splits) {
    sum += split;
    bytes.push_back(split * row);
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(call.size) && sum == rows, call.name,
                    ": split sizes must be one for each of ", call.size, " ranks and add up to ", rows,
                    ", got ", splits.size(), " that add up to ", sum);
  return bytes;
}

std::vector<uint64_t> bytes_of_each(const Tensors& tensors) {
  std::vector<uint64_t> bytes;
  for (const auto& tensor : tensors) bytes.push_back(bytes_of(tensor));
  return bytes;
}

}  // namespace tefl::ccl
