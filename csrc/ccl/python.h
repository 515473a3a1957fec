// The process groups' Python face: what tefl.distributed is made of.
#pragma once

#include <pybind11/pybind11.h>

namespace tefl::ccl {

void bind(pybind11::module_& module);

}  // namespace tefl::ccl
