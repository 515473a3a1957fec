// Random numbers: each device's generator wraps one of the alias device, which the kernels draw from.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace tefl::device {

/// Device `index`'s default generator; a negative index means the current device. Starts the runtime
/// only where the generator is a GPU's own.
const at::Generator& default_generator(c10::DeviceIndex index);

/// A new generator for device `index`, seeded with PyTorch's default seed.
at::Generator new_generator(c10::DeviceIndex index);

/// The generator that a kernel of the alias device draws from in place of `generator`, which is one of ours.
at::Generator inner_generator(const at::Generator& generator);

}  // namespace tefl::device
