#include "device/attention.h"

#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty_strided.h>

#include "device/alias_target.h"

namespace tefl::device {
namespace {

int64_t as_int(sdp::SDPBackend backend) { return static_cast<int64_t>(backend); }

// A host tensor of the same shape, whose contents nobody reads: to choose, none of them need be copied.
at::Tensor shape_of(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU))
      .requires_grad_(tensor.requires_grad());
}

// On the host the choice is the host's own, asked through the alias kernel. It no longer sees that the mask
// wants a gradient, which the fused kernel has not. A GPU's fused kernels have names of their own, so that
// composite operators are the way there.
int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool causal,
               std::optional<double> scale, bool grouped) {
  const bool mask_gradient = mask && mask->defined() && mask->requires_grad();
  if (alias_target().type != c10::kCPU || mask_gradient) return as_int(sdp::SDPBackend::math);
  if (!alias_target().copies) {
    return at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, grouped);
  }
  const auto shaped = mask && mask->defined() ? std::optional<at::Tensor>(shape_of(*mask)) : std::nullopt;
  return at::_fused_sdp_choice(shape_of(query), shape_of(key), shape_of(value), shaped, dropout, causal,
                               scale, grouped);
}

}  // namespace

void install_attention_choice() { at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose); }

}  // namespace tefl::device
