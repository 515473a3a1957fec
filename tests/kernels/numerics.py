"""Results of an implementation of a norm op against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tefl.kernels.reference import norm as reference

from ..ops.samples.norm import GOOD
from ..ops.samples.sample import Sample, random

__all__ = ["DTYPES", "OPS", "assert_right", "backward_call", "forward_call", "samples"]

OPS = tuple(GOOD)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# What rounding a result to its dtype may change, of the result's magnitude: half a unit in the last place.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
FLOAT32 = (
    4e-6  # what sums of a few thousand float32 terms in any order may be off by, of the terms' magnitude
)


def samples(op: str, dtype: torch.dtype) -> Iterator[Sample]:
    """The awkward calls that every implementation of the op has to serve."""
    yield from GOOD[op](dtype)


def forward_call(op: str, x: Tensor, weight_dtype: torch.dtype, zero_centered: bool) -> Sample:
    columns = x.shape[-1]
    weight, bias = random(columns, dtype=weight_dtype, seed=1), random(columns, dtype=weight_dtype, seed=2)
    first = {"layernorm_fwd": (x, weight, bias), "rmsnorm_fwd": (x, weight)}
    args = first.get(op, (x, random(*x.shape, dtype=x.dtype, seed=3), weight))
    return Sample(op, (*args, 1e-5), {"zero_centered_gamma": zero_centered, "out_dtype": None})


def backward_call(op: str, x: Tensor, weight_dtype: torch.dtype, zero_centered: bool) -> Sample:
    mu, rsigma = x.float().mean(-1), (x.float().square().mean(-1) + 1e-5).rsqrt()
    grad, weight = random(*x.shape, dtype=x.dtype, seed=4), random(x.shape[-1], dtype=weight_dtype, seed=1)
    other = random(*x.shape, dtype=x.dtype, seed=5)
    args = {
        "layernorm_bwd": (grad, x, mu, rsigma, weight),
        "rmsnorm_bwd": (grad, x, rsigma, weight),
        "rmsnorm_bwd_add": (grad, x, other, rsigma, weight),
        "add_rmsnorm_bwd": (grad, other, x, rsigma, weight),
    }[op]
    options = {"bias_grad": True} if op == "layernorm_bwd" else {}
    return Sample(op, args, {"zero_centered_gamma": zero_centered, **options})


def assert_right(op: str, sample: Sample, got: tuple[Tensor, ...], roundings: float = 1.0) -> None:
    """Shapes, dtypes and values are those of the definition, computed in float64.

    Each result may be off by ``roundings`` roundings to its own dtype, and by what float32 arithmetic loses.
    """
    like = getattr(reference, op)(*sample.args, **sample.kwargs)
    assert [(g.shape, g.dtype, g.is_contiguous()) for g in got] == [(e.shape, e.dtype, True) for e in like]
    args = _normalises_its_own_sum(sample.args, got) if op == "add_rmsnorm_fwd" else sample.args
    exact = _in_float64(op, args, sample.kwargs)
    for index, (result, value) in enumerate(zip(got, exact, strict=True)):
        result, value = _without_overflow(result, value)
        allowed = roundings * ROUNDING[result.dtype] * _norm(value) + FLOAT32 * _norm(_terms(op, args)[index])
        error = _norm(result.double() - value)
        assert error <= allowed, f"{op}, {sample.label}: result {index} is off by {error:.3g} > {allowed:.3g}"


def _normalises_its_own_sum(args: tuple[Any, ...], got: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """Arguments whose exact sum is the residual_out that was stored, rounding and all; checked to be near."""
    x, residual, *rest = args
    exact = x.double() + residual.double()
    assert (got[1].double() - exact).abs().le(2 * ROUNDING[x.dtype] * exact.abs() + 1e-30).all()
    return got[1], torch.zeros_like(got[1]), *rest


def _without_overflow(result: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """Where the exact value is more than the dtype holds, the result is infinite. Both without that."""
    rounded = exact.to(result.dtype)
    over = rounded.isinf()
    assert torch.equal(result[over], rounded[over])
    return result[~over], exact[~over]


def _in_float64(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    wide = [a.double() if isinstance(a, Tensor) else a for a in args]
    options = {name: value for name, value in kwargs.items() if name != "out_dtype"}
    return tuple(getattr(reference, op)(*wide, **options))


def _terms(op: str, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """For each result, the magnitudes of what is added up to it: larger than the result where they cancel."""
    if op.endswith("fwd"):
        x = args[0].double()
        centred = x - x.mean(-1, keepdim=True) if op == "layernorm_fwd" else x
        rsigma = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return (x.abs() + x.abs().mean(-1, keepdim=True)) * rsigma, x, x
    columns = args[-1].shape[-1]
    tensors = [a.double().abs() for a in args if isinstance(a, Tensor)]
    grad, weight, rsigma = tensors[0].reshape(-1, columns), tensors[-1] + 1, tensors[-2].reshape(-1, 1)
    x = tensors[2 if op == "add_rmsnorm_bwd" and args[1] is not None else 1].reshape(-1, columns)
    h = (x + x.mean(-1, keepdim=True)) * rsigma
    g = grad * weight
    dinput = (g + g.mean(-1, keepdim=True) + h * (g * h).mean(-1, keepdim=True)) * rsigma
    return dinput, (grad * h).sum(0), grad.sum(0)


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))
