// The fused cells of LSTM and GRU, which PyTorch's host library has no kernels for.
#pragma once

#include <torch/library.h>

namespace tefl::device {

/// Registers them and their backward operators under `aten`, an IMPL library of the device's key.
void register_recurrent_cells(torch::Library& aten);

}  // namespace tefl::device
