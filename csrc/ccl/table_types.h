// PyTorch's dtypes and reductions as the CCL table has them.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "ccl/call.h"
#include "ccl/communicator.h"
#include "ccl/reduction.h"

namespace tefl::ccl {

/// Throws a ValueError where the table has no such type or reduction. Booleans are bytes of 0 and 1, for
/// which a sum is a maximum and a product a minimum.
tefl_dtype table_dtype(const Call& call, at::ScalarType dtype);
tefl_reduction table_reduction(const Call& call, const c10d::ReduceOp& op, at::ScalarType dtype);

/// Calls `enqueue(dtype, reduction)`, a function of the table, for elements of `type`. Where the library has
/// no average, and for what no library has, it sums, and scales `results` afterwards in the current stream.
template <class Enqueue>
void enqueue_reduction(const Call& call, const c10d::ReduceOp& op, at::ScalarType type,
                       std::vector<at::Tensor> results, const Enqueue& enqueue) {
  const auto dtype = table_dtype(call, type);
  if (op.op_ == c10d::ReduceOp::AVG) {
    const auto status = enqueue(dtype, table_reduction(call, op, type));
    if (status != TEFL_ERR_UNSUPPORTED) return check(status, call);
  }
  const Reduction how(op, call.size);
  check(enqueue(dtype, table_reduction(call, how.inner(), type)), call);
  if (how.scales()) how.scale(results);
}

}  // namespace tefl::ccl
