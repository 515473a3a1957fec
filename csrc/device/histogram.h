// Counting that the host's kernels refuse for integers and a GPU's do not.
#pragma once

#include <torch/library.h>

namespace tefl::device {

/// aten::histc, which mixture-of-experts code calls on integers wherever a tensor is not on the CPU.
void register_histogram(torch::Library& aten);

}  // namespace tefl::device
