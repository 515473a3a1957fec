// View operators and operators on storages. A view that went through a copy would lose writes silently.
#pragma once

#include <torch/library.h>

namespace tefl::device {

/// Registers them under `aten`, an IMPL library of the device's key.
void register_views(torch::Library& aten);

}  // namespace tefl::device
