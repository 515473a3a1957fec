// Costs more to compile than all of its neighbours together, since PyTorch's macros instantiate a wrapper for
// each operator; so nothing else lives here.
#include "device/autocast.h"

#include <ATen/autocast_mode.h>

namespace tefl::device {
namespace {

// Wants probabilities, which half precision rounds to 0 and 1.
at::Tensor refuse_binary_cross_entropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       int64_t) {
  TORCH_CHECK(false,
              "binary_cross_entropy and BCELoss are unsafe to autocast: use "
              "binary_cross_entropy_with_logits or BCEWithLogitsLoss, or disable autocast around the call");
}

#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FLOAT32_SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define FLOAT32_APPEND_DTYPE(...) KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE(__VA_ARGS__)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

}  // namespace

void register_autocast(torch::Library& m) {  // `m`, because the macros call it so
  using namespace at;                        // and these names are theirs as well
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(FLOAT32_SET_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(FLOAT32_APPEND_DTYPE)
  AT_FORALL_PROMOTE(PROMOTE)
  m.impl("binary_cross_entropy", refuse_binary_cross_entropy);
}

}  // namespace tefl::device
