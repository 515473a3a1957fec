// scaled_dot_product_attention on the device: how its kernel is chosen, and the fused kernels of a GPU.
#pragma once

#include <torch/library.h>

namespace tefl::device {

/// Enters our choice into PyTorch's table. Cannot be undone.
void install_attention_choice();

/// Registers flash attention and its backward under `aten`, an IMPL library of the device's key, for a device
/// whose alias is a GPU. The GPU's other fused kernels need nothing but the alias kernel.
void register_attention(torch::Library& aten);

}  // namespace tefl::device
