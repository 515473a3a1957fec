// Device times of the autograd profiler's ranges, torch.autograd.profiler.profile(use_device=name).
#pragma once

namespace tefl::device {

/// Gives PyTorch's profiler events of this device to measure the ranges by.
void install_profiler();

}  // namespace tefl::device
