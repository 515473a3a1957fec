// The launcher's Python face: tefl._C.Binary and tefl._C.Kernel.
#pragma once

#include <pybind11/pybind11.h>

namespace tefl::launch {

void bind(pybind11::module_& module);

}  // namespace tefl::launch
