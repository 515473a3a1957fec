"""The norm family: LayerNorm, RMSNorm, and RMSNorm with a fused residual addition.

The formulas, their sources and the conventions on dtypes are those of the reference implementations,
``tefl.kernels.reference.norm``. Here: schemas, fake functions, checks, and what is whose gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tefl._lazy import Lazy
from tefl.dispatch.types import Backward, OpDecl
from tefl.ops import _norm_check

__all__ = ["DECLARATIONS"]


def _statistics(input: Tensor) -> torch.dtype:
    """The dtype of mu and rsigma."""
    return torch.float64 if input.dtype is torch.float64 else torch.float32


def _normalised(input: Tensor, out_dtype: torch.dtype | None) -> Tensor:
    return input.new_empty(input.shape, dtype=out_dtype or input.dtype)


def _row_values(input: Tensor) -> Tensor:
    return input.new_empty(input.shape[:-1], dtype=_statistics(input))


def _gradients(input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return input.new_empty(input.shape), weight.new_empty(weight.shape)


def _fake_layernorm_fwd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _normalised(input, out_dtype), _row_values(input), _row_values(input)


def _fake_layernorm_bwd(
    grad: Tensor,
    input: Tensor,
    mu: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
    bias_grad: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    return *_gradients(input, weight), weight.new_empty(weight.shape if bias_grad else (0,))


def _fake_rmsnorm_fwd(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    return _normalised(input, out_dtype), _row_values(input)


def _fake_rmsnorm_bwd(
    grad: Tensor, input: Tensor, rsigma: Tensor, weight: Tensor, *, zero_centered_gamma: bool = False
) -> tuple[Tensor, Tensor]:
    return _gradients(input, weight)


def _fake_rmsnorm_bwd_add(
    grad: Tensor,
    input: Tensor,
    add: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> tuple[Tensor, Tensor]:
    return _gradients(input, weight)


def _fake_add_rmsnorm_fwd(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _normalised(input, out_dtype), input.new_empty(input.shape), _row_values(input)


def _fake_add_rmsnorm_bwd(
    grad: Tensor,
    grad_residual_out: Tensor | None,
    residual_out: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> tuple[Tensor, Tensor]:
    return _gradients(residual_out, weight)


def _declared(name: str, schema: str, fake: Callable[..., Any], backward: Backward | None = None) -> OpDecl:
    """The declaration of a norm op, whose check and reference bear its name."""
    return OpDecl(
        name=name,
        family="norm",
        schema=schema,
        fake=fake,
        reference=Lazy("tefl.kernels.reference.norm", name),
        check=getattr(_norm_check, name),
        backward=backward,
    )


DECLARATIONS = (
    _declared(
        "layernorm_fwd",
        "(Tensor input, Tensor weight, Tensor? bias=None, float eps=1e-5, *, "
        "bool zero_centered_gamma=False, ScalarType? out_dtype=None) -> "
        "(Tensor out, Tensor mu, Tensor rsigma)",
        _fake_layernorm_fwd,
        Backward(
            op="layernorm_bwd",
            args=(
                ("grad", "out"),
                ("input", "input"),
                ("output", "mu"),
                ("output", "rsigma"),
                ("input", "weight"),
                ("input", "zero_centered_gamma"),
                ("needs", "bias"),
            ),
            grads={"input": 0, "weight": 1, "bias": 2},
        ),
    ),
    _declared(
        "layernorm_bwd",
        "(Tensor grad, Tensor input, Tensor mu, Tensor rsigma, Tensor weight, *, "
        "bool zero_centered_gamma=False, bool bias_grad=True) -> "
        "(Tensor dinput, Tensor dweight, Tensor dbias)",
        _fake_layernorm_bwd,
    ),
    _declared(
        "rmsnorm_fwd",
        "(Tensor input, Tensor weight, float eps=1e-5, *, "
        "bool zero_centered_gamma=False, ScalarType? out_dtype=None) -> (Tensor out, Tensor rsigma)",
        _fake_rmsnorm_fwd,
        Backward(
            op="rmsnorm_bwd",
            args=(
                ("grad", "out"),
                ("input", "input"),
                ("output", "rsigma"),
                ("input", "weight"),
                ("input", "zero_centered_gamma"),
            ),
            grads={"input": 0, "weight": 1},
        ),
    ),
    _declared(
        "rmsnorm_bwd",
        "(Tensor grad, Tensor input, Tensor rsigma, Tensor weight, *, "
        "bool zero_centered_gamma=False) -> (Tensor dinput, Tensor dweight)",
        _fake_rmsnorm_bwd,
    ),
    _declared(
        "rmsnorm_bwd_add",
        "(Tensor grad, Tensor input, Tensor add, Tensor rsigma, Tensor weight, *, "
        "bool zero_centered_gamma=False) -> (Tensor dinput, Tensor dweight)",
        _fake_rmsnorm_bwd_add,
    ),
    _declared(
        "add_rmsnorm_fwd",
        "(Tensor input, Tensor residual, Tensor weight, float eps=1e-5, *, "
        "bool zero_centered_gamma=False, ScalarType? out_dtype=None) -> "
        "(Tensor out, Tensor residual_out, Tensor rsigma)",
        _fake_add_rmsnorm_fwd,
        Backward(
            op="add_rmsnorm_bwd",
            args=(
                ("grad", "out"),
                ("grad", "residual_out"),
                ("output", "residual_out"),
                ("output", "rsigma"),
                ("input", "weight"),
                ("input", "zero_centered_gamma"),
            ),
            grads={"input": 0, "residual": 0, "weight": 1},
            differentiable=("out", "residual_out"),
        ),
    ),
    _declared(
        "add_rmsnorm_bwd",
        "(Tensor grad, Tensor? grad_residual_out, Tensor residual_out, Tensor rsigma, Tensor weight, *, "
        "bool zero_centered_gamma=False) -> (Tensor dinput, Tensor dweight)",
        _fake_add_rmsnorm_bwd,
    ),
)
