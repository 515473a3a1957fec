#include "device/attention.h"

#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <tuple>

#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/implement.h"

namespace tefl::device {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using sdp::SDPBackend;

int64_t as_int(SDPBackend backend) { return static_cast<int64_t>(backend); }

// ---------------------------------------------------------------------------------------------- choice --

// A host tensor of the same shape, whose contents nobody reads: to choose, none of them need be copied.
Tensor shape_of(const Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU))
      .requires_grad_(tensor.requires_grad());
}

// The host no longer sees that the mask wants a gradient, which its fused kernel has not.
int64_t choose_on_host(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
                       double dropout, bool causal, std::optional<double> scale, bool grouped) {
  const bool mask_gradient = mask && mask->defined() && mask->requires_grad();
  if (mask_gradient) return as_int(SDPBackend::math);
  if (!alias_target().copies) {
    return at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, grouped);
  }
  const auto shaped = mask && mask->defined() ? MaybeTensor(shape_of(*mask)) : std::nullopt;
  return at::_fused_sdp_choice(shape_of(query), shape_of(key), shape_of(value), shaped, dropout, causal,
                               scale, grouped);
}

// What the alias device is asked with: the same memory, wanting a gradient where the tensor does.
Tensor like_on_alias(const Tensor& tensor) {
  Tensor alias = as_alias(tensor);
  if (tensor.requires_grad()) alias.requires_grad_(true);
  return alias;
}

// A GPU's choice is its own. PyTorch calls the kernel of its choice by a name that any device may have, but
// for flash attention, which other devices than CUDA reach by the overrideable pair below.
int64_t choose_on_gpu(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
                      double dropout, bool causal, std::optional<double> scale, bool grouped) {
  MaybeTensor alias_mask;
  if (mask && mask->defined()) alias_mask = like_on_alias(*mask);
  const auto choice = at::_fused_sdp_choice(like_on_alias(query), like_on_alias(key), like_on_alias(value),
                                            alias_mask, dropout, causal, scale, grouped);
  return choice == as_int(SDPBackend::flash_attention) ? as_int(SDPBackend::overrideable) : choice;
}

// ---------------------------------------------------------------------------------------- flash attention --

constexpr int64_t kHeadMultiple = 8;  // the kernel takes head sizes that are multiples of it

double scale_of(const Tensor& query, std::optional<double> scale) {
  return scale ? *scale : 1 / std::sqrt(static_cast<double>(query.size(-1)));
}

// Zeros at the end of each head change neither the scores nor, past them, the results.
Tensor padded(const Tensor& tensor) {
  const int64_t rest = tensor.size(-1) % kHeadMultiple;
  return rest == 0 ? tensor : at::constant_pad_nd(tensor, {0, kHeadMultiple - rest});
}

Tensor cropped(const Tensor& tensor, const Tensor& like) {
  return tensor.size(-1) == like.size(-1) ? tensor : tensor.narrow(-1, 0, like.size(-1));
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Forward attend(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& bias,
               double dropout, bool causal, bool return_debug_mask, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !bias || !bias->defined(), "aten::_scaled_dot_product_fused_attention_overrideable is flash ",
      "attention here, which takes no bias: call torch.nn.functional.scaled_dot_product_attention");
  auto [out, logsumexp, cum_q, cum_k, max_q, max_k, seed, offset, debug] =
      at::_scaled_dot_product_flash_attention(padded(query), padded(key), padded(value), dropout, causal,
                                              return_debug_mask, scale_of(query, scale));
  return {cropped(out, value), logsumexp, cum_q, cum_k, max_q, max_k, seed, offset, debug};
}

using Backward = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Backward attend_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                         const Tensor&, std::array<bool, 4> wanted, const Tensor& out,
                         const Tensor& logsumexp, const Tensor& cum_q, const Tensor& cum_k, int64_t max_q,
                         int64_t max_k, double dropout, bool causal, const Tensor& seed, const Tensor& offset,
                         std::optional<double> scale) {
  auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_backward(
      padded(grad), padded(query), padded(key), padded(value), padded(out), logsumexp, cum_q, cum_k, max_q,
      max_k, dropout, causal, seed, offset, scale_of(query, scale));
  return {wanted[0] ? cropped(grad_query, query) : Tensor(), wanted[1] ? cropped(grad_key, key) : Tensor(),
          wanted[2] ? cropped(grad_value, value) : Tensor(), Tensor()};
}

}  // namespace

void install_attention_choice() {
  const bool on_host = alias_target().type == c10::kCPU;
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(on_host ? &choose_on_host : &choose_on_gpu);
}

void register_attention(torch::Library& aten) {
  implement(aten, "_scaled_dot_product_fused_attention_overrideable", attend);
  implement(aten, "_scaled_dot_product_fused_attention_overrideable_backward", attend_backward);
}

}  // namespace tefl::device
