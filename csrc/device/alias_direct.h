// A shorter way than the alias kernel's for small operators on a GPU, where a call's price is the host's
// time.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace tefl::device {

/// Registers `op` for the device without a stack between caller and GPU kernel, if it is of the kind that can
/// be: a few tensors and numbers in, one new tensor out. False where it is not, and nothing is registered.
/// Calls that the short way cannot serve (tensors that share memory or lie elsewhere) go through the alias
/// kernel. Only where the alias is a GPU.
bool register_direct(const c10::OperatorHandle& op);

}  // namespace tefl::device
