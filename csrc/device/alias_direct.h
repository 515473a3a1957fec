// A shorter way than the alias kernel's, for small operators, where a call's price is the host's time.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace tefl::device {

/// Registers `op` for the device with arguments and results in its C++ types, if its signature is in the
/// table of those that are worth it. False where it is not, and nothing is registered. Calls that the short
/// way cannot serve (operands elsewhere, tensors of other kinds) go through the alias kernel. Only where the
/// alias device computes on the device's memory and nobody need be told.
bool register_direct(const c10::OperatorHandle& op);

}  // namespace tefl::device
