// The launcher's Python face: tefl._C.Binary and tefl._C.Kernel.
#pragma once

#include <pybind11/pybind11.h>

#include "launch/kernel.h"

namespace tefl::launch {

void bind(pybind11::module_& module);

/// A grid or a block (`what`) out of a tuple of up to three numbers. TypeError or ValueError, with the
/// kernel's name, where it is none.
Size3 size3(const Kernel& kernel, const char* what, const pybind11::tuple& value);

/// A number, or None for a null pointer, as the bytes of the kernel's parameter of that type. `position`
/// counts what the caller gives. TypeError or ValueError where it does not fit.
uint64_t value_bits(const Kernel& kernel, char letter, Py_ssize_t position, pybind11::handle value);

/// Throws the TypeError for `got` values where the kernel's signature asks for another number of them.
[[noreturn]] void refuse_count(const Kernel& kernel, size_t got);

}  // namespace tefl::launch
