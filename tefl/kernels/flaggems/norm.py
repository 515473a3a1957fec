"""LayerNorm and RMSNorm by FlagGems 5.

Its functions are called directly: the ``use_gems()`` context re-registers operators at every entry, which
costs a hundred times what a norm does. They return statistics flat, one value a row. The residual forms
are not here, because FlagGems' overwrite their arguments and keep no statistics.
"""

from __future__ import annotations

import torch
from flag_gems.ops.layernorm import layer_norm, layer_norm_backward
from flag_gems.ops.rms_norm import rms_norm_backward, rms_norm_forward
from torch import Tensor

__all__ = ["layernorm_bwd", "layernorm_fwd", "rmsnorm_bwd", "rmsnorm_fwd"]


def layernorm_fwd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (out, mu, rsigma); see the reference. For float32: statistics come in input's dtype."""
    out, mu, rsigma = layer_norm(input, input.shape[-1:], _gamma(weight, zero_centered_gamma), bias, eps)
    return out, mu.view(input.shape[:-1]), rsigma.view(input.shape[:-1])


def layernorm_bwd(
    grad: Tensor,
    input: Tensor,
    mu: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
    bias_grad: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (dinput, dweight, dbias); see the reference."""
    columns = input.shape[-1]
    gamma = _gamma(weight, zero_centered_gamma)
    dinput, dweight, dbias = layer_norm_backward(
        grad.reshape(-1, columns),
        input.reshape(-1, columns),
        input.shape[-1:],
        mu.reshape(-1),
        rsigma.reshape(-1),
        gamma,
        gamma,  # FlagGems reads no bias here, only its shape and dtype
        [True, True, bias_grad],
    )
    return (
        dinput.view(input.shape),
        dweight.to(weight.dtype),
        dbias.to(weight.dtype) if bias_grad else weight.new_empty(0),
    )


def rmsnorm_fwd(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns (out, rsigma); see the reference."""
    out, rsigma = rms_norm_forward(input, input.shape[-1:], _gamma(weight, zero_centered_gamma), eps)
    return out, rsigma.view(input.shape[:-1])


def rmsnorm_bwd(
    grad: Tensor, input: Tensor, rsigma: Tensor, weight: Tensor, *, zero_centered_gamma: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns (dinput, dweight); see the reference."""
    gamma = _gamma(weight, zero_centered_gamma)
    dinput, dweight = rms_norm_backward(grad, input, rsigma.reshape(-1), input.shape[-1:], gamma)
    return dinput.view(input.shape), dweight.to(weight.dtype)


def _gamma(weight: Tensor, zero_centered: bool) -> Tensor:
    """What FlagGems multiplies by: one more than a zero-centred weight, in float32, where that is exact."""
    return weight.float() + 1 if zero_centered else weight
