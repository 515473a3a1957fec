#include "ccl/host_form.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace tefl::ccl {
namespace {

bool gloo_knows(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kBool:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

}  // namespace

void require_movable_on_host(const Call& call, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(gloo_knows(tensor.scalar_type()) || tensor.is_contiguous(), call.name, ": got ",
                    c10::toString(tensor.scalar_type()), " with strides ", tensor.strides(),
                    "; gloo moves this dtype as bytes in the order of memory: pass .contiguous()");
}

at::Tensor as_movable(at::Tensor tensor) {
  if (gloo_knows(tensor.scalar_type()) || tensor.numel() == 0) return tensor;
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  return tensor.view({-1}).view(at::kByte).view({rows, -1});
}

Tensors as_movable(Tensors tensors) {
  for (auto& tensor : tensors) tensor = as_movable(std::move(tensor));
  return tensors;
}

Lists as_movable(Lists lists) {
  for (auto& list : lists) list = as_movable(std::move(list));
  return lists;
}

Tensors without_shape(Tensors tensors) {
  for (auto& tensor : tensors) tensor = tensor.is_contiguous() ? tensor.view({-1}) : tensor;
  return tensors;
}

bool are_contiguous(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const auto& tensor) { return tensor.is_contiguous(); });
}

std::vector<int64_t> counts_of(const Tensors& tensors) {
  std::vector<int64_t> counts;
  for (const auto& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

}  // namespace tefl::ccl
