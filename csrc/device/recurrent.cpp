// PyTorch's recurrent layers call these operators for every device of ours. The equations are those of
// torch.nn.LSTM and torch.nn.GRU; B is the batch, H the hidden size.
#include "device/recurrent.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <tuple>
#include <vector>

#include "device/implement.h"

namespace tefl::device {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

bool given(const MaybeTensor& tensor) { return tensor && tensor->defined(); }

Tensor add_bias(const Tensor& gates, const MaybeTensor& bias) { return given(bias) ? gates + *bias : gates; }

Tensor sigmoid_gradient(const Tensor& gate) { return gate * (1 - gate); }
Tensor tanh_gradient(const Tensor& gate) { return 1 - gate * gate; }

// Gates are [B, 4H]: input, forget, cell, output. The workspace holds them activated, for the backward.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const MaybeTensor& input_bias,
                                             const MaybeTensor& hidden_bias) {
  const auto gates = add_bias(input_gates, input_bias) + add_bias(hidden_gates, hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), out = parts[3].sigmoid();
  const auto cell = parts[2].tanh();
  const auto cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) return {};
  const auto gates = workspace.chunk(4, 1);
  const auto &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const auto squashed = cy.tanh();
  const auto hidden = given(grad_hy) ? *grad_hy : at::zeros_like(cy);
  auto grad_cell_state = hidden * out * tanh_gradient(squashed);
  if (given(grad_cy)) grad_cell_state = grad_cell_state + *grad_cy;
  const auto grad_gates =
      at::cat({grad_cell_state * cell * sigmoid_gradient(in), grad_cell_state * cx * sigmoid_gradient(forget),
               grad_cell_state * in * tanh_gradient(cell), hidden * squashed * sigmoid_gradient(out)},
              1);
  return {grad_gates, grad_cell_state * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

// Gates are [B, 3H]: reset, update, new. The workspace is [B, 5H]: those activated, the old hidden state, and
// what the reset gate multiplies.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto input = add_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = add_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (input[0] + hidden[0]).sigmoid();
  const auto update = (input[1] + hidden[1]).sigmoid();
  const auto fresh = (input[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace, bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const auto &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3], &hidden = saved[4];
  const auto grad_update = grad_hy * (hx - fresh) * sigmoid_gradient(update);
  const auto grad_fresh = grad_hy * (1 - update) * tanh_gradient(fresh);
  const auto grad_reset = grad_fresh * hidden * sigmoid_gradient(reset);
  const auto grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const auto grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  return {grad_input, grad_hidden, grad_hy * update, has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

}  // namespace

void register_recurrent_cells(torch::Library& aten) {
  implement(aten, "_thnn_fused_lstm_cell", lstm_cell);
  implement(aten, "_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  implement(aten, "_thnn_fused_gru_cell", gru_cell);
  implement(aten, "_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace tefl::device
