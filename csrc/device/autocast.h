// Autocast on the device.
#pragma once

#include <torch/library.h>

namespace tefl::device {

/// Registers PyTorch's op lists for autocast under `aten`, an IMPL library of the device's autocast key:
/// those that run in lower precision, in float32, in the widest dtype given, and the one that is refused.
void register_autocast(torch::Library& aten);

}  // namespace tefl::device
