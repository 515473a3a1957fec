"""The Triton norm kernels give what float64 gives, as far as their dtypes allow: interpreted, on the CPU."""

from __future__ import annotations

import pytest
import torch

from ..ops.samples.sample import random
from .interpreter import Interpreter
from .numerics import DTYPES, OPS, assert_right, backward_call, forward_call, samples

FORWARD = [op for op in OPS if op.endswith("fwd")]
BACKWARD = [op for op in OPS if not op.endswith("fwd")]
# Several rows a program, one; a whole number of vectors, not; a last program with rows to spare.
SHAPES = ((300, 64), (33, 257), (5, 1000), (2, 2051))

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))


def roundings(dtype: torch.dtype) -> float:
    """The interpreter cuts a float32 off to make a bfloat16 of it, where a GPU rounds to nearest."""
    return 2.0 if dtype is torch.bfloat16 else 1.0


@dtypes
@pytest.mark.parametrize("op", OPS)
def test_awkward_calls(interpreted: Interpreter, op: str, dtype: torch.dtype) -> None:
    for sample in samples(op, dtype):
        assert_right(op, sample, interpreted(op, *sample.args, **sample.kwargs), roundings(dtype))


@shapes
@dtypes
@pytest.mark.parametrize("op", FORWARD)
def test_forward(interpreted: Interpreter, op: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = random(*shape, dtype=dtype) + 0.5
    sample = forward_call(op, x, torch.float32, zero_centered=shape[1] % 2 == 1)
    assert_right(op, sample, interpreted(op, *sample.args, **sample.kwargs), roundings(dtype))


@shapes
@dtypes
@pytest.mark.parametrize("op", BACKWARD)
def test_backward(interpreted: Interpreter, op: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = random(*shape, dtype=dtype) + 0.5
    sample = backward_call(op, x, torch.float32, zero_centered=shape[1] % 2 == 1)
    assert_right(op, sample, interpreted(op, *sample.args, **sample.kwargs), roundings(dtype))


@pytest.mark.parametrize("op", FORWARD)
def test_a_forward_of_more_columns_than_a_program_holds(interpreted: Interpreter, op: str) -> None:
    sample = forward_call(op, random(2, 33001) + 0.5, torch.float32, zero_centered=True)
    assert_right(op, sample, interpreted(op, *sample.args, **sample.kwargs))


@pytest.mark.parametrize("op", BACKWARD)
def test_a_backward_of_more_columns_than_a_program_holds(interpreted: Interpreter, op: str) -> None:
    sample = backward_call(op, random(3, 8201) + 0.5, torch.float32, zero_centered=True)
    assert_right(op, sample, interpreted(op, *sample.args, **sample.kwargs))


def test_a_weight_of_another_float_dtype_gets_its_gradient_in_that_dtype(interpreted: Interpreter) -> None:
    sample = backward_call("rmsnorm_bwd", random(9, 48, dtype=torch.float16), torch.bfloat16, False)
    _, dweight = interpreted("rmsnorm_bwd", *sample.args, **sample.kwargs)
    assert dweight.dtype is torch.bfloat16


def test_statistics_are_not_rounded_to_a_bfloat16_input(interpreted: Interpreter) -> None:
    x = random(4, 96, dtype=torch.bfloat16)
    _, rsigma = interpreted("rmsnorm_fwd", x, torch.ones(96), 1e-5)
    torch.testing.assert_close(rsigma, (x.float().square().mean(-1) + 1e-5).rsqrt(), rtol=1e-6, atol=0)


def test_the_variance_of_values_far_from_zero_does_not_cancel(interpreted: Interpreter) -> None:
    x = 10000 + random(3, 512)
    _, _, rsigma = interpreted("layernorm_fwd", x, torch.ones(512), None, 0.0)
    exact = x.double().var(-1, correction=0).rsqrt()
    # The mean itself is rounded to a float32 near 10000, which shifts the variance by at most its square.
    torch.testing.assert_close(rsigma.double(), exact, rtol=1e-5, atol=0)
