// Operators whose kernels draw random numbers without taking a generator.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace tefl::device {

/// aten::native_dropout, what F.dropout calls: (output, mask), the mask drawn from the device's generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train);

}  // namespace tefl::device
