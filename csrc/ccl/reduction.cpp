#include "ccl/reduction.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

namespace tefl::ccl {
namespace {

double factor_of(const c10d::ReduceOp& op) {
  const auto* given = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  return given->tensor_factor.defined() ? given->tensor_factor.item<double>() : given->double_factor;
}

}  // namespace

Reduction::Reduction(const c10d::ReduceOp& wanted, int size) : inner_(wanted) {
  if (wanted.op_ == c10d::ReduceOp::AVG) {
    inner_ = c10d::ReduceOp(c10d::ReduceOp::SUM);
    divisor_ = size;
  } else if (wanted.op_ == c10d::ReduceOp::PREMUL_SUM) {
    inner_ = c10d::ReduceOp(c10d::ReduceOp::SUM);
    factor_ = factor_of(wanted);
  }
}

void Reduction::scale(std::vector<at::Tensor>& results) const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (auto& result : results) {
    if (factor_ != 1.0) result.mul_(factor_);
    if (divisor_ == 1) continue;
    if (at::isIntegralType(result.scalar_type(), /*includeBool=*/true)) {
      result.div_(divisor_, "trunc");
    } else {
      result.div_(divisor_);
    }
  }
}

void require_reducible(const char* call, const c10d::ReduceOp& op, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(op.op_ != c10d::ReduceOp::AVG || dtype != at::kBool, call,
                    ": there is no AVG of Bool; use MIN, MAX, SUM or PRODUCT");
  TORCH_CHECK_VALUE(op.op_ != c10d::ReduceOp::PREMUL_SUM || !at::isIntegralType(dtype, /*includeBool=*/true),
                    call, ": PREMUL_SUM multiplies by a fraction, got ", c10::toString(dtype),
                    "; convert to floats, or use SUM");
}

const char* name_of(const c10d::ReduceOp& op) {
  static constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                           "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return op.op_ < std::size(kNames) ? kNames[op.op_] : "an unknown reduction";
}

}  // namespace tefl::ccl
