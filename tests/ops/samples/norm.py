"""Calls of the norm ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from .sample import Bad, Sample, awkward, random

__all__ = ["BAD", "GOOD"]

_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"zero_centered_gamma": True}, {"out_dtype": torch.float32})


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """mu and rsigma of LayerNorm, which do for RMSNorm too: a backward takes whatever numbers it is given."""
    wide = x if x.dtype is torch.float64 else x.float()
    mu = wide.mean(-1)
    variance = (wide - mu.unsqueeze(-1)).square().mean(-1)
    return mu.contiguous(), torch.rsqrt(variance + 1e-5).contiguous()


def _like(x: Tensor, seed: int) -> Tensor:
    return random(*x.shape, dtype=x.dtype, seed=seed)


def _layernorm_fwd(dtype: torch.dtype) -> Iterator[Sample]:
    for label, x in awkward(dtype):
        weight, bias = random(x.shape[-1], dtype=dtype, seed=1), random(x.shape[-1], dtype=dtype, seed=2)
        yield Sample(label, (x, weight, bias))
        yield Sample(f"{label}, no bias", (x, weight, None, 1e-3))
    for options in _OPTIONS[1:]:
        yield Sample(f"{options}", (random(4, 16, dtype=dtype), random(16), random(16), 1e-6), options)


def _layernorm_bwd(dtype: torch.dtype) -> Iterator[Sample]:
    for label, x in awkward(dtype):
        yield Sample(label, (_like(x, 3), x, *_statistics(x), random(x.shape[-1], dtype=dtype)))
    x = random(4, 16, dtype=dtype)
    for options in {"zero_centered_gamma": True}, {"bias_grad": False}:
        yield Sample(f"{options}", (random(4, 16), x, *_statistics(x), random(16)), options)


def _rmsnorm_fwd(dtype: torch.dtype) -> Iterator[Sample]:
    for label, x in awkward(dtype):
        yield Sample(label, (x, random(x.shape[-1], dtype=dtype, seed=1)))
    for options in _OPTIONS[1:]:
        yield Sample(f"{options}", (random(4, 16, dtype=dtype), random(16), 1e-6), options)


def _rmsnorm_bwd(dtype: torch.dtype) -> Iterator[Sample]:
    for label, x in awkward(dtype):
        yield Sample(label, (_like(x, 3), x, _statistics(x)[1], random(x.shape[-1], dtype=dtype)))
    x = random(4, 16, dtype=dtype)
    yield Sample(
        "wide grad", (random(4, 16), x, _statistics(x)[1], random(16)), {"zero_centered_gamma": True}
    )


def _rmsnorm_bwd_add(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _rmsnorm_bwd(dtype):
        grad, x, rsigma, weight = sample.args
        yield Sample(sample.label, (grad, x, _like(x, 4), rsigma, weight), sample.kwargs)


def _add_rmsnorm_fwd(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _rmsnorm_fwd(dtype):
        x, *rest = sample.args
        yield Sample(sample.label, (x, _like(x, 5), *rest), sample.kwargs)


def _add_rmsnorm_bwd(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in _rmsnorm_bwd(dtype):
        grad, *rest = sample.args
        yield Sample(sample.label, (grad, _like(rest[0], 6), *rest), sample.kwargs)
        yield Sample(f"{sample.label}, no residual gradient", (grad, None, *rest), sample.kwargs)


GOOD: dict[str, Callable[[torch.dtype], Iterable[Sample]]] = {
    "layernorm_fwd": _layernorm_fwd,
    "layernorm_bwd": _layernorm_bwd,
    "rmsnorm_fwd": _rmsnorm_fwd,
    "rmsnorm_bwd": _rmsnorm_bwd,
    "rmsnorm_bwd_add": _rmsnorm_bwd_add,
    "add_rmsnorm_fwd": _add_rmsnorm_fwd,
    "add_rmsnorm_bwd": _add_rmsnorm_bwd,
}

# --- calls that must be refused ---

_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "layernorm_fwd": ("input", "weight", "bias", "eps"),
    "layernorm_bwd": ("grad", "input", "mu", "rsigma", "weight"),
    "rmsnorm_fwd": ("input", "weight", "eps"),
    "rmsnorm_bwd": ("grad", "input", "rsigma", "weight"),
    "rmsnorm_bwd_add": ("grad", "input", "add", "rsigma", "weight"),
    "add_rmsnorm_fwd": ("input", "residual", "weight", "eps"),
    "add_rmsnorm_bwd": ("grad", "grad_residual_out", "residual_out", "rsigma", "weight"),
}

_Wrong = tuple[str, Any, type[Exception], tuple[str, ...]]
"""A label, a value, the error it must raise, and what that says besides the op and the argument."""


def _right(name: str) -> Any:
    """What fits in the place of the argument: rows of shape (2, 3), of 8 values, in bfloat16."""
    if name == "eps":
        return 1e-5
    if name in ("mu", "rsigma"):
        return torch.ones(2, 3)
    return random(*((8,) if name in ("weight", "bias") else (2, 3, 8)), dtype=torch.bfloat16)


def _wrong_dtypes(name: str) -> Iterator[_Wrong]:
    fits = _right(name)
    for dtype in (torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn):
        yield str(dtype), fits.to(dtype), TypeError, (str(dtype), "float")
    if name in ("mu", "rsigma"):
        yield "rounded", fits.bfloat16(), TypeError, ("torch.bfloat16", "wanted torch.float32")
    if name in ("bias", "add", "residual", "grad_residual_out"):
        yield "wider", fits.float(), TypeError, ("torch.float32", "wanted torch.bfloat16")


def _wrong_elsewhere(name: str) -> Iterator[_Wrong]:
    """Not asked of what is normalised: its shape and device are what the others must agree with."""
    fits = _right(name)
    for label, value in (
        ("too long", torch.cat([fits, fits])),
        ("a dimension more", fits.unsqueeze(0)),
        ("a dimension less", fits[0]),
    ):
        yield label, value, ValueError, (str(tuple(value.shape)), f"wanted {tuple(fits.shape)}")
    yield "another device", fits.to("meta"), ValueError, ("on meta", "on cpu", ".to(")


def _wrong_numbers() -> Iterator[_Wrong]:
    for eps in (-1e-5, float("nan"), float("inf")):
        yield str(eps), eps, ValueError, (str(eps), "at least 0")


def _wrong_shapes() -> Iterator[_Wrong]:
    """Of what is normalised."""
    yield "no dimension", torch.tensor(1.0, dtype=torch.bfloat16), ValueError, ("()", "at least one")
    yield "last dimension of 0", torch.ones(3, 0, dtype=torch.bfloat16), ValueError, ("(3, 0)", "at least 1")


def _refused(op: str) -> Callable[[], Iterator[Bad]]:
    names = _ARGUMENTS[op]
    normalised = "residual_out" if "residual_out" in names else "input"
    right = {name: _right(name) for name in names}

    def wrong(name: str) -> Iterator[_Wrong]:
        if name == "eps":
            yield from _wrong_numbers()
            return
        yield from _wrong_dtypes(name)
        yield from _wrong_shapes() if name == normalised else _wrong_elsewhere(name)

    def calls() -> Iterator[Bad]:
        for name in names:
            for label, value, error, says in wrong(name):
                args = tuple({**right, name: value}.values())
                yield Bad(f"{name}: {label}", args, {}, error, (f"tefl::{op}: {name} ", *says))
        if "eps" in names:
            options = {"out_dtype": torch.int8}
            yield Bad(
                "out_dtype", tuple(right.values()), options, TypeError, (f"tefl::{op}: out_dtype", "int8")
            )

    return calls


BAD: dict[str, Callable[[], Iterable[Bad]]] = {op: _refused(op) for op in _ARGUMENTS}
