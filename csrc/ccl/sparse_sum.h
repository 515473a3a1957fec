// Sums of tensors in coordinate form, by gathers of dense ones: no library beneath has to know them.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ccl/call.h"

namespace tefl::ccl {

/// The sum over all ranks of `group` of such tensors of one shape, coalesced; `own` is this rank's,
/// coalesced. Every rank adds in the same order. Waits for the other ranks: how many elements they bring has
/// to be known before those can be gathered. A DistBackendError on every rank where the forms of their `call`
/// differ. `timeout` is each gather's.
at::Tensor sum_of_all_ranks(c10d::Backend& group, const Call& call, const at::Tensor& own,
                            std::chrono::milliseconds timeout);

}  // namespace tefl::ccl
