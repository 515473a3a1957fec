// Reductions that a library has not: an average, or a sum of multiples, is a sum whose result is scaled.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace tefl::ccl {

/// The reduction to ask a library for, and what to do with its result afterwards.
class Reduction {
 public:
  Reduction(const c10d::ReduceOp& wanted, int size);

  const c10d::ReduceOp& inner() const { return inner_; }
  bool scales() const { return divisor_ != 1 || factor_ != 1.0; }

  /// Divides or multiplies the results, tensors on any device, in their own dtype. Integers are divided
  /// towards zero.
  void scale(std::vector<at::Tensor>& results) const;

 private:
  c10d::ReduceOp inner_;
  int64_t divisor_ = 1;
  double factor_ = 1.0;
};

/// A ValueError where `op` has no meaning for `dtype`, whatever the library.
void require_reducible(const char* call, const c10d::ReduceOp& op, at::ScalarType dtype);

/// "SUM", "AVG", ...; lives for ever.
const char* name_of(const c10d::ReduceOp& op);

}  // namespace tefl::ccl
