#include "ccl/table_types.h"

#include <c10/util/Exception.h>

#include "device/provider.h"

namespace tefl::ccl {

tefl_dtype table_dtype(const Call& call, at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
    case at::kByte:
      return TEFL_UINT8;
    case at::kChar:
      return TEFL_INT8;
    case at::kShort:
      return TEFL_INT16;
    case at::kInt:
      return TEFL_INT32;
    case at::kLong:
      return TEFL_INT64;
    case at::kHalf:
      return TEFL_FLOAT16;
    case at::kBFloat16:
      return TEFL_BFLOAT16;
    case at::kFloat:
      return TEFL_FLOAT32;
    case at::kDouble:
      return TEFL_FLOAT64;
    default:
      TORCH_CHECK_VALUE(false, call.name, ": ", device::device_name(), " does not reduce ",
                        c10::toString(dtype), "; convert to a type of integers or floats that it has");
  }
}

tefl_reduction table_reduction(const Call& call, const c10d::ReduceOp& op, at::ScalarType dtype) {
  const bool boolean = dtype == at::kBool;
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return boolean ? TEFL_MAX : TEFL_SUM;
    case c10d::ReduceOp::PRODUCT:
      return boolean ? TEFL_MIN : TEFL_PRODUCT;
    case c10d::ReduceOp::MIN:
      return TEFL_MIN;
    case c10d::ReduceOp::MAX:
      return TEFL_MAX;
    case c10d::ReduceOp::AVG:
      return TEFL_AVG;
    default:
      TORCH_CHECK_VALUE(false, call.name, ": ", device::device_name(), " has no ", name_of(op),
                        "; use SUM, PRODUCT, MIN, MAX or AVG");
  }
}

}  // namespace tefl::ccl
