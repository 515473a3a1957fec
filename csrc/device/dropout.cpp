#include "device/dropout.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <string>

namespace tefl::device {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", std::to_string(p));
  const auto boolean = input.options().dtype(at::kBool);
  if (input.numel() == 0 || !train.value_or(true)) return {input.clone(), at::ones_like(input, boolean)};
  if (p == 1) return {at::zeros_like(input), at::zeros_like(input, boolean)};
  // The mask is drawn in the input's dtype, as on the host, so that equal seeds give equal masks.
  const auto mask = at::empty_like(input).bernoulli_(1 - p);
  return {input.mul(mask).mul_(1 / (1 - p)), mask.to(at::kBool)};
}

}  // namespace tefl::device
