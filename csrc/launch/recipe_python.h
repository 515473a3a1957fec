// Recipes as tefl/kernels/recipe.py writes them: tefl._C.recipe_kernel.
#pragma once

#include <pybind11/pybind11.h>

namespace tefl::launch {

void bind_recipes(pybind11::module_& module);

}  // namespace tefl::launch
