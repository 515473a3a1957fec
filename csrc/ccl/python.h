// The process groups' Python face, for tefl/privateuse1/process_group.py.
#pragma once

#include <pybind11/pybind11.h>

namespace tefl::ccl {

void bind(pybind11::module_& module);

}  // namespace tefl::ccl
