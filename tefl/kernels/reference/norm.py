"""LayerNorm, RMSNorm and RMSNorm with a fused residual addition, forward and backward, in plain PyTorch.

Sources: Ba, Kiros, Hinton, "Layer Normalization", arXiv:1607.06450; Zhang, Sennrich, "Root Mean Square Layer
Normalization", arXiv:1910.07467. The gradients follow from the formulas by the chain rule.

Conventions of the family, for input x with n values in its last dimension:

- Arithmetic is float32, float64 for float64 input, whatever the other dtypes; each result is rounded once.
- mu and rsigma have shape ``x.shape[:-1]`` and the dtype of that arithmetic; rsigma is one over sigma.
- gamma is ``weight``; with ``zero_centered_gamma`` it is ``weight + 1``, added in that arithmetic.
- ``out`` has x's dtype or ``out_dtype``; a gradient has the dtype of what it is the gradient of.
- Every result is contiguous, whatever the strides of the arguments.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "add_rmsnorm_bwd",
    "add_rmsnorm_fwd",
    "layernorm_bwd",
    "layernorm_fwd",
    "rmsnorm_bwd",
    "rmsnorm_bwd_add",
    "rmsnorm_fwd",
]


def layernorm_fwd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``out = (x - mu) * rsigma * gamma + bias``, where ``mu = mean(x)`` and
    ``rsigma = 1 / sqrt(mean((x - mu)^2) + eps)``.

    Returns (out, mu, rsigma). The variance is the biased one, in two passes.
    """
    x = _widened(input)
    mu = x.mean(-1)
    centered = x - mu.unsqueeze(-1)
    rsigma = torch.rsqrt(centered.square().mean(-1) + eps)
    out = centered * rsigma.unsqueeze(-1) * _gamma(weight, x.dtype, zero_centered_gamma)
    if bias is not None:
        out = out + bias.to(x.dtype)
    return _stored(out, out_dtype or input.dtype), mu.contiguous(), rsigma.contiguous()


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
    """With ``xhat = (x - mu) * rsigma`` and ``g = grad * gamma``, row by row:

    ``dinput = rsigma * (g - mean(g) - xhat * mean(g * xhat))``; over all rows ``dweight = sum(grad * xhat)``
    and ``dbias = sum(grad)``. Returns (dinput, dweight, dbias); dbias has weight's dtype, and is empty
    (shape ``(0,)``) when ``bias_grad`` is False.
    """
    x = _widened(input)
    grad = grad.to(x.dtype)
    xhat = (x - mu.unsqueeze(-1)) * rsigma.unsqueeze(-1)
    g = grad * _gamma(weight, x.dtype, zero_centered_gamma)
    dinput = g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True)
    dbias = _sum_of_rows(grad, weight) if bias_grad else weight.new_empty(0)
    return _stored(dinput * rsigma.unsqueeze(-1), input.dtype), _sum_of_rows(grad * xhat, weight), dbias


def rmsnorm_fwd(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """``out = x * rsigma * gamma`` with ``rsigma = 1 / sqrt(mean(x^2) + eps)``. Returns (out, rsigma)."""
    x = _widened(input)
    rsigma = torch.rsqrt(x.square().mean(-1) + eps)
    out = x * rsigma.unsqueeze(-1) * _gamma(weight, x.dtype, zero_centered_gamma)
    return _stored(out, out_dtype or input.dtype), rsigma.contiguous()


def rmsnorm_bwd(
    grad: Tensor, input: Tensor, rsigma: Tensor, weight: Tensor, *, zero_centered_gamma: bool = False
) -> tuple[Tensor, Tensor]:
    """With ``xhat = x * rsigma`` and ``g = grad * gamma``, row by row:

    ``dinput = rsigma * (g - xhat * mean(g * xhat))``; over all rows ``dweight = sum(grad * xhat)``.
    Returns (dinput, dweight).
    """
    dinput, dweight = _rmsnorm_gradients(grad, input, rsigma, weight, zero_centered_gamma)
    return _stored(dinput, input.dtype), dweight


def rmsnorm_bwd_add(
    grad: Tensor,
    input: Tensor,
    add: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> tuple[Tensor, Tensor]:
    """`rmsnorm_bwd` with ``add`` (shape and dtype of input) added to dinput before it is rounded."""
    dinput, dweight = _rmsnorm_gradients(grad, input, rsigma, weight, zero_centered_gamma)
    return _stored(dinput + add.to(dinput.dtype), input.dtype), dweight


def add_rmsnorm_fwd(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``residual_out = input + residual``, and `rmsnorm_fwd` of it. Returns (out, residual_out, rsigma).

    The norm is that of residual_out as stored, in the dtype of input: what the backward is given.
    """
    residual_out = (input + residual).contiguous()
    out, rsigma = rmsnorm_fwd(
        residual_out, weight, eps, zero_centered_gamma=zero_centered_gamma, out_dtype=out_dtype
    )
    return out, residual_out, rsigma


def add_rmsnorm_bwd(
    grad: Tensor,
    grad_residual_out: Tensor | None,
    residual_out: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gradients of `add_rmsnorm_fwd`, dinput being that of input and of residual. Returns (dinput, dweight).

    ``grad_residual_out`` is what reaches residual_out from elsewhere; None stands for zeros.
    """
    if grad_residual_out is None:
        return rmsnorm_bwd(grad, residual_out, rsigma, weight, zero_centered_gamma=zero_centered_gamma)
    return rmsnorm_bwd_add(
        grad, residual_out, grad_residual_out, rsigma, weight, zero_centered_gamma=zero_centered_gamma
    )


def _rmsnorm_gradients(
    grad: Tensor, input: Tensor, rsigma: Tensor, weight: Tensor, zero_centered_gamma: bool
) -> tuple[Tensor, Tensor]:
    """dinput in the dtype of the arithmetic, dweight in weight's."""
    x = _widened(input)
    grad = grad.to(x.dtype)
    xhat = x * rsigma.unsqueeze(-1)
    g = grad * _gamma(weight, x.dtype, zero_centered_gamma)
    dinput = (g - xhat * (g * xhat).mean(-1, keepdim=True)) * rsigma.unsqueeze(-1)
    return dinput, _sum_of_rows(grad * xhat, weight)


def _widened(input: Tensor) -> Tensor:
    """input in the dtype that its norm is computed in."""
    return input if input.dtype is torch.float64 else input.float()


def _gamma(weight: Tensor, dtype: torch.dtype, zero_centered: bool) -> Tensor:
    gamma = weight.to(dtype)
    return gamma + 1 if zero_centered else gamma


def _stored(result: Tensor, dtype: torch.dtype) -> Tensor:
    return result.to(dtype).contiguous()


def _sum_of_rows(values: Tensor, weight: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1]).sum(0).to(weight.dtype)
