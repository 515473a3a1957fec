// Registering a kernel of ours for the device.
#pragma once

#include <torch/library.h>

#include <string>
#include <utility>

#include "device/register.h"

namespace tefl::device {

/// The kernel of operator `name` of aten for the device, unless the vendor has brought one.
template <typename Kernel>
void implement(torch::Library& aten, const char* name, Kernel&& kernel) {
  if (!has_kernel(std::string("aten::") + name, "PrivateUse1")) {
    aten.impl(name, std::forward<Kernel>(kernel));
  }
}

}  // namespace tefl::device
