"""Any shape, any strides: results are those of a contiguous copy."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tefl  # noqa: F401 - registers the ops

from . import oracle
from .samples.sample import random

ops = torch.ops.tefl

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64])
SHAPES = st.lists(st.integers(0, 4), max_size=4).flatmap(
    lambda rows: st.integers(1, 40).map(lambda columns: [*rows, columns])
)


@st.composite
def tensors(draw: st.DrawFn, shape: list[int], dtype: torch.dtype, seed: int) -> Tensor:
    """A tensor of the shape that may be permuted, sliced with a step, offset, or expanded in memory."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.integers(1, 3)) for _ in shape]
    expanded = [draw(st.booleans()) if size > 0 else False for size in shape[:-1]] + [False]
    stored = [1 if e else size * step + 1 for size, step, e in zip(shape, steps, expanded, strict=True)]
    base = random(*(stored[i] for i in order), dtype=dtype, seed=seed)
    view = base.permute([order.index(i) for i in range(len(shape))])
    for dim, (step, e) in enumerate(zip(steps, expanded, strict=True)):
        view = view if e else view[(slice(None),) * dim + (slice(1, None, step),)]
    return view.expand(shape)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, another of its shape, weight, bias."""
    shape, dtype = draw(SHAPES), draw(DTYPES)
    x, other = (draw(tensors(shape, dtype, seed)) for seed in (0, 1))
    weight, bias = (draw(tensors(shape[-1:], dtype, seed)) for seed in (2, 3))
    return x, other, weight, bias


def compact(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def assert_same(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    """Alike but for the order of sums, and the rounding that this may tip; and contiguous."""
    unit = torch.finfo(dtype).eps
    for a, b in zip(got, expected, strict=True):
        assert a.is_contiguous()
        torch.testing.assert_close(
            a, b, rtol=unit, atol=64 * torch.finfo(torch.float32).eps if unit > 1e-12 else 1e-12
        )


@settings(max_examples=150, deadline=None)
@given(calls())
def test_rmsnorm(call: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x, grad, weight, _ = call
    got = ops.rmsnorm_fwd(x, weight, 1e-3)
    assert_same(got, ops.rmsnorm_fwd(compact(x), compact(weight), 1e-3), x.dtype)
    exact = oracle.rms_norm(x, weight, 1e-3, False)
    computed = torch.float64 if x.dtype is torch.float64 else torch.float32
    oracle.assert_near(got[0], exact, exact.abs(), computed)
    rsigma = got[1]
    gradients = ops.rmsnorm_bwd(grad, x, rsigma, weight)
    assert_same(gradients, ops.rmsnorm_bwd(compact(grad), compact(x), rsigma, compact(weight)), x.dtype)


@settings(max_examples=100, deadline=None)
@given(calls())
def test_layernorm(call: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x, grad, weight, bias = call
    got = ops.layernorm_fwd(x, weight, bias, 0.1)
    assert_same(got, ops.layernorm_fwd(*map(compact, (x, weight, bias)), 0.1), x.dtype)
    gradients = ops.layernorm_bwd(grad, x, *got[1:], weight)
    expected = ops.layernorm_bwd(compact(grad), compact(x), *got[1:], compact(weight))
    assert_same(gradients, expected, x.dtype)


@settings(max_examples=100, deadline=None)
@given(calls())
def test_add_rmsnorm(call: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x, residual, weight, _ = call
    got = ops.add_rmsnorm_fwd(x, residual, weight, 0.1)
    assert_same(got, ops.add_rmsnorm_fwd(*map(compact, (x, residual, weight)), 0.1), x.dtype)
    gradients = ops.add_rmsnorm_bwd(x, residual, residual, got[2], weight)
    expected = ops.add_rmsnorm_bwd(*map(compact, (x, residual, residual)), got[2], compact(weight))
    assert_same(gradients, expected, x.dtype)
