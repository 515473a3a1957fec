// The device's Python face: the functions of tefl._C that tefl.privateuse1 is made of.
#pragma once

#include <pybind11/pybind11.h>

namespace tefl::device {

void bind(pybind11::module_& module);

}  // namespace tefl::device
