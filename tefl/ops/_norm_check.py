"""What the norm ops demand of their arguments. One function an op, with the op's signature."""

from __future__ import annotations

import torch
from torch import Tensor

from tefl.ops import _check as check

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
) -> None:
    op = "layernorm_fwd"
    check.same_device(op, input, weight=weight, bias=bias)
    _forward(op, input, weight, eps, out_dtype)
    if bias is not None:
        check.same_dtype(op, "bias", bias, weight.dtype, "the dtype of weight")
        check.shape(op, "bias", bias, weight.shape, "the shape of weight")


def layernorm_bwd(
    grad: Tensor,
    input: Tensor,
    mu: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
    bias_grad: bool = True,
) -> None:
    op = "layernorm_bwd"
    check.same_device(op, input, grad=grad, mu=mu, rsigma=rsigma, weight=weight)
    _backward(op, grad, "input", input, rsigma, weight)
    _statistics(op, "mu", mu, "input", input)


def rmsnorm_fwd(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> None:
    check.same_device("rmsnorm_fwd", input, weight=weight)
    _forward("rmsnorm_fwd", input, weight, eps, out_dtype)


def rmsnorm_bwd(
    grad: Tensor, input: Tensor, rsigma: Tensor, weight: Tensor, *, zero_centered_gamma: bool = False
) -> None:
    check.same_device("rmsnorm_bwd", input, grad=grad, rsigma=rsigma, weight=weight)
    _backward("rmsnorm_bwd", grad, "input", input, rsigma, weight)


def rmsnorm_bwd_add(
    grad: Tensor,
    input: Tensor,
    add: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> None:
    op = "rmsnorm_bwd_add"
    check.same_device(op, input, grad=grad, add=add, rsigma=rsigma, weight=weight)
    _backward(op, grad, "input", input, rsigma, weight)
    _like(op, "add", add, "input", input)


def add_rmsnorm_fwd(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> None:
    op = "add_rmsnorm_fwd"
    check.same_device(op, input, residual=residual, weight=weight)
    _forward(op, input, weight, eps, out_dtype)
    _like(op, "residual", residual, "input", input)


def add_rmsnorm_bwd(
    grad: Tensor,
    grad_residual_out: Tensor | None,
    residual_out: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> None:
    op = "add_rmsnorm_bwd"
    check.same_device(
        op,
        residual_out,
        of="residual_out",
        grad=grad,
        grad_residual_out=grad_residual_out,
        rsigma=rsigma,
        weight=weight,
    )
    _backward(op, grad, "residual_out", residual_out, rsigma, weight)
    if grad_residual_out is not None:
        _like(op, "grad_residual_out", grad_residual_out, "residual_out", residual_out)


def _forward(op: str, input: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype | None) -> None:
    _normalised(op, "input", input, weight)
    check.eps(op, eps)
    check.out_dtype(op, out_dtype)


def _backward(op: str, grad: Tensor, name: str, normalised: Tensor, rsigma: Tensor, weight: Tensor) -> None:
    """``normalised`` is what the forward took the norm of, ``name`` what the op calls it."""
    _normalised(op, name, normalised, weight)
    check.floating(op, "grad", grad)
    check.shape(op, "grad", grad, normalised.shape, f"the shape of {name}")
    _statistics(op, "rsigma", rsigma, name, normalised)


def _normalised(op: str, name: str, normalised: Tensor, weight: Tensor) -> None:
    check.floating(op, name, normalised)
    check.floating(op, "weight", weight)
    check.last_dimension(op, name, normalised)
    check.shape(op, "weight", weight, normalised.shape[-1:], f"the last dimension of {name}")


def _statistics(op: str, name: str, statistics: Tensor, of: str, normalised: Tensor) -> None:
    wide = torch.float64 if normalised.dtype is torch.float64 else torch.float32
    check.same_dtype(op, name, statistics, wide, f"the dtype of statistics of a {normalised.dtype} {of}")
    check.shape(op, name, statistics, normalised.shape[:-1], f"one value for each row of {of}")


def _like(op: str, name: str, tensor: Tensor, of: str, other: Tensor) -> None:
    check.same_dtype(op, name, tensor, other.dtype, f"the dtype of {of}")
    check.shape(op, name, tensor, other.shape, f"the shape of {of}")
