#include "ccl/arguments.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

namespace tefl::ccl {
namespace {

std::string amount(const at::Tensor& tensor) {
  return std::to_string(tensor.numel()) + " x " + c10::toString(tensor.scalar_type());
}

}  // namespace

void require_one_each(const Call& call, const Tensors& parts, const char* what) {
  TORCH_CHECK_VALUE(parts.size() == static_cast<size_t>(call.size), call.name, ": got ", parts.size(), " ",
                    what, ", wants one for each of ", call.size, " ranks");
}

void require_parts(const Call& call, const Tensors& parts, const at::Tensor& whole, const char* what) {
  require_one_each(call, parts, what);
  for (const auto& part : parts) {
    TORCH_CHECK_VALUE(part.numel() == whole.numel() && part.dtype() == whole.dtype(), call.name, ": got ",
                      what, " of ", amount(part), " and of ", amount(whole),
                      "; all must be alike: pad them, or use all_to_all");
  }
}

bool are_of_one_size(const Tensors& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const at::Tensor& part) { return part.sizes() == parts.front().sizes(); });
}

void require_own_part(const Call& call, const Tensors& parts, const at::Tensor& own, const char* what) {
  require_one_each(call, parts, what);
  for (const auto& part : parts) {
    TORCH_CHECK_VALUE(part.dtype() == own.dtype(), call.name, ": got ", what, " of ", amount(part),
                      " and of ", amount(own), "; all must have one dtype");
  }
  const auto& counterpart = parts[call.rank];
  TORCH_CHECK_VALUE(counterpart.numel() == own.numel(), call.name, ": number ", call.rank, " of the ", what,
                    " is of ", amount(counterpart), ", wants ", amount(own), ", as this rank's own tensor");
}

void require_multiple(const Call& call, const char* large_name, const at::Tensor& large,
                      const char* small_name, const at::Tensor& small) {
  TORCH_CHECK_VALUE(large.numel() == small.numel() * call.size && large.dtype() == small.dtype(), call.name,
                    ": got an ", large_name, " of ", amount(large), " and an ", small_name, " of ",
                    amount(small), "; the ", large_name, " must have ", call.size,
                    " times the elements of the ", small_name, ", and its dtype");
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

void require_multiples(const Call& call, const char* large_name, const Tensors& large, const char* small_name,
                       const Tensors& small) {
  TORCH_CHECK_VALUE(large.size() == small.size(), call.name, ": got ", large.size(), " ", large_name,
                    "s and ", small.size(), " ", small_name, "s, wants as many of both");
  for (size_t i = 0; i < large.size(); ++i) {
    require_multiple(call, large_name, large[i], small_name, small[i]);
  }
}

void require_splits(const Call& call, const char* name, const at::Tensor& tensor,
                    const std::vector<int64_t>& splits) {
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % call.size == 0 && (rows != 0 || tensor.numel() == 0), call.name, ": the ", name,
                      "'s first dimension of ", rows, " cannot be split evenly over ", call.size,
                      " ranks; pass ", name, "_split_sizes");
    return;
  }
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  const bool counts = std::all_of(splits.begin(), splits.end(), [](int64_t split) { return split >= 0; });
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(call.size) && sum == rows && counts, call.name,
                    ": got ", name, "_split_sizes ", c10::IntArrayRef(splits), ", wants one for each of ",
                    call.size, " ranks that add up to the ", name, "'s first dimension, ", rows);
}

}  // namespace tefl::ccl
