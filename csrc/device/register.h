// Claiming the device: the one place where anything is registered with PyTorch.
#pragma once

#include <string>
#include <vector>

#include "device/provider.h"

namespace tefl::device {

/// What stands in the way of a claim: an alias that operators cannot run on here, or a PyTorch in which
/// another library holds the device already. Empty where nothing does. Changes nothing.
std::vector<Defect> claim_defects(const tefl_provider& provider);

/// Makes `provider` the process's device, shown as `device_name`: guard, allocator, hooks, then its
/// operators: our own, and the alias kernel for every operator of `aten` that has a kernel for the alias
/// device and none for ours, so that kernels registered before stay. Returns how many run through the alias
/// kernel. Starts no runtime. Throws where claim_defects() names any, before changing anything; past that
/// nothing can be undone, since PyTorch keeps what it is given.
int claim(const tefl_provider* provider, const std::string& device_name);

/// Whether operator `name` ("aten::add.Tensor") has a kernel of its own, composite ones not counted, for
/// dispatch key `key` ("CPU", "PrivateUse1"). False where there is no such operator.
bool has_kernel(const std::string& name, const std::string& key);

}  // namespace tefl::device
