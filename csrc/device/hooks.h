// PyTorch's hooks for the device: what generic code asks that is neither an operator nor a guard.
#pragma once

namespace tefl::device {

/// Registers our hooks. Cannot be undone, and PyTorch refuses a second set.
void install_hooks();

}  // namespace tefl::device
