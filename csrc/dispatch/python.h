// Dispatch's Python face: tefl._C.dispatch.
#pragma once

#include <pybind11/pybind11.h>

namespace tefl::dispatch {

void bind(pybind11::module_& module);

}  // namespace tefl::dispatch
