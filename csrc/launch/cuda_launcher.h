// Kernels on NVIDIA GPUs through the CUDA driver, which is found at run time: nothing links against it.
#pragma once

#include "launch/launcher.h"

namespace tefl::launch {

/// Throws what `cuda_launcher_defect` says where the driver cannot be used.
const Launcher& cuda_launcher();

/// Why the CUDA driver cannot be used; empty where it can. Opens the library at the first call and asks again
/// while it is missing. Makes no context.
std::string cuda_launcher_defect();

}  // namespace tefl::launch
