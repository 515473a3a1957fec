"""The reference implementations of the norm ops against torch's own functions in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tefl.kernels.reference import norm

from . import oracle
from .samples.sample import random

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = ((1, 1), (3, 5), (7,), (64, 129), (16, 1024), (2, 3, 4, 5, 6), (0, 8))

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)
zero_centered = pytest.mark.parametrize("zero_centered", [False, True], ids=["gamma", "gamma+1"])


def computed(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def column(values: Tensor) -> Tensor:
    return values.unsqueeze(-1)


@dtypes
@shapes
@zero_centered
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
def test_layernorm_fwd(
    dtype: torch.dtype, shape: tuple[int, ...], zero_centered: bool, with_bias: bool
) -> None:
    x, weight = random(*shape, dtype=dtype) + 0.5, random(shape[-1], dtype=dtype, seed=1)
    bias = random(shape[-1], dtype=dtype, seed=2) if with_bias else None
    out, mu, rsigma = norm.layernorm_fwd(x, weight, bias, 1e-3, zero_centered_gamma=zero_centered)
    exact_mu, exact_rsigma = oracle.layer_norm_statistics(x, 1e-3)
    exact = oracle.layer_norm(x, weight, bias, 1e-3, zero_centered)
    spread = (x.double().abs() + column(exact_mu.abs())) * column(exact_rsigma)
    # mu is off by roundings of what it is the mean of; so is what is centred; sigma by the square of that.
    scale = spread + spread.square().mean(-1, keepdim=True) * spread
    terms = scale * oracle.gamma(weight, zero_centered).abs() + (0 if bias is None else bias.double().abs())
    oracle.assert_near(out, exact, terms, computed(dtype))
    oracle.assert_near(mu, exact_mu, x.double().abs().mean(-1), computed(dtype))
    oracle.assert_near(rsigma, exact_rsigma, exact_rsigma * spread.square().mean(-1), computed(dtype))


@dtypes
@shapes
@zero_centered
def test_rmsnorm_fwd(dtype: torch.dtype, shape: tuple[int, ...], zero_centered: bool) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    out, rsigma = norm.rmsnorm_fwd(x, weight, 1e-3, zero_centered_gamma=zero_centered)
    exact, exact_rsigma = oracle.rms_norm(x, weight, 1e-3, zero_centered), oracle.rms_norm_statistics(x, 1e-3)
    terms = x.double().abs() * column(exact_rsigma) * (weight.double().abs() + zero_centered)
    oracle.assert_near(out, exact, terms, computed(dtype))
    oracle.assert_near(rsigma, exact_rsigma, exact_rsigma, computed(dtype))


@dtypes
@shapes
def test_add_rmsnorm_fwd_is_a_sum_and_the_norm_of_the_stored_sum(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x, residual, weight = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1), random(shape[-1])
    out, residual_out, rsigma = norm.add_rmsnorm_fwd(x, residual, weight, 1e-3)
    assert torch.equal(residual_out, x + residual)
    exact_rsigma = oracle.rms_norm_statistics(x + residual, 1e-3)
    terms = residual_out.double().abs() * column(exact_rsigma) * weight.double().abs()
    oracle.assert_near(out, oracle.rms_norm(x + residual, weight, 1e-3, False), terms, computed(dtype))
    oracle.assert_near(rsigma, exact_rsigma, exact_rsigma, computed(dtype))


def gradients(exact: Tensor, grad: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(exact, leaves, grad.double())


def row_terms(g: Tensor, xhat: Tensor, rsigma: Tensor) -> Tensor:
    """The magnitudes that a norm's dinput is made of."""
    mean = (g * xhat).abs().mean(-1, keepdim=True)
    return column(rsigma) * (g.abs() + g.abs().mean(-1, keepdim=True) + 2 * xhat.abs() * mean)


@dtypes
@shapes
@zero_centered
def test_rmsnorm_bwd(dtype: torch.dtype, shape: tuple[int, ...], zero_centered: bool) -> None:
    x, weight, grad = (random(*s, dtype=dtype, seed=i) for i, s in enumerate((shape, shape[-1:], shape)))
    leaves = x.double().requires_grad_(), weight.double().requires_grad_()
    exact = gradients(oracle.rms_norm(*leaves, 1e-3, zero_centered), grad, *leaves)
    rsigma = oracle.rms_norm_statistics(x, 1e-3)
    got = norm.rmsnorm_bwd(grad, x, rsigma.to(computed(dtype)), weight, zero_centered_gamma=zero_centered)
    xhat = x.double() * column(rsigma)
    g = grad.double() * oracle.gamma(weight, zero_centered)
    oracle.assert_near(got[0], exact[0], row_terms(g, xhat, rsigma), computed(dtype))
    rows = (grad.double() * xhat).abs().reshape(-1, shape[-1]).sum(0)
    oracle.assert_near(got[1], exact[1], rows, computed(dtype))
    assert [t.dtype for t in got] == [dtype, dtype]


@dtypes
@shapes
@zero_centered
def test_layernorm_bwd(dtype: torch.dtype, shape: tuple[int, ...], zero_centered: bool) -> None:
    x, weight, grad = (random(*s, dtype=dtype, seed=i) for i, s in enumerate((shape, shape[-1:], shape)))
    bias = torch.zeros(shape[-1], dtype=torch.float64, requires_grad=True)
    leaves = x.double().requires_grad_(), weight.double().requires_grad_(), bias
    exact = gradients(oracle.layer_norm(*leaves, 1e-3, zero_centered), grad, *leaves)
    mu, rsigma = oracle.layer_norm_statistics(x, 1e-3)
    statistics = mu.to(computed(dtype)), rsigma.to(computed(dtype))
    got = norm.layernorm_bwd(grad, x, *statistics, weight, zero_centered_gamma=zero_centered)
    # xhat is a difference: its terms are larger than itself where x is near its mean.
    xhat = (x.double().abs() + column(mu.abs())) * column(rsigma)
    g = grad.double() * oracle.gamma(weight, zero_centered)
    oracle.assert_near(got[0], exact[0], row_terms(g, xhat, rsigma), computed(dtype))
    rows = (grad.double() * xhat).abs().reshape(-1, shape[-1]).sum(0)
    oracle.assert_near(got[1], exact[1], rows, computed(dtype))
    rows = grad.double().abs().reshape(-1, shape[-1]).sum(0)
    oracle.assert_near(got[2], exact[2], rows, computed(dtype))


def test_layernorm_bwd_without_bias_gradient_gives_an_empty_one() -> None:
    x, weight = random(4, 8), random(8)
    dinput, dweight, dbias = norm.layernorm_bwd(x, x, torch.zeros(4), torch.ones(4), weight, bias_grad=False)
    assert dbias.shape == (0,)
    assert dbias.dtype is weight.dtype
    both = norm.layernorm_bwd(x, x, torch.zeros(4), torch.ones(4), weight)
    assert torch.equal(dinput, both[0])
    assert torch.equal(dweight, both[1])


def test_layernorm_bwd_sums_the_bias_gradient_over_rows_and_gives_it_last() -> None:
    grad = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    x = torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])
    *_, dbias = norm.layernorm_bwd(grad, x, x.mean(-1), torch.ones(2), torch.ones(3))
    assert dbias.tolist() == [11.0, 22.0, 33.0]


@dtypes
def test_rmsnorm_bwd_add_adds_before_it_rounds(dtype: torch.dtype) -> None:
    x, weight, grad, add = (
        random(*s, dtype=dtype, seed=i) for i, s in enumerate(((32, 65), (65,), (32, 65), (32, 65)))
    )
    leaves = x.double().requires_grad_(), weight.double().requires_grad_()
    exact = gradients(oracle.rms_norm(*leaves, 1e-3, False), grad, *leaves)
    rsigma = oracle.rms_norm_statistics(x, 1e-3)
    got = norm.rmsnorm_bwd_add(grad, x, add, rsigma.to(computed(dtype)), weight)
    terms = (
        row_terms(grad.double() * weight.double(), x.double() * column(rsigma), rsigma) + add.double().abs()
    )
    oracle.assert_near(got[0], exact[0] + add.double(), terms, computed(dtype))
    assert torch.equal(got[1], norm.rmsnorm_bwd(grad, x, rsigma.to(computed(dtype)), weight)[1])


def test_add_rmsnorm_bwd_takes_an_absent_residual_gradient_for_zeros() -> None:
    x, weight, grad, rsigma = random(6, 8), random(8, seed=1), random(6, 8, seed=2), random(6, seed=3)
    absent = norm.add_rmsnorm_bwd(grad, None, x, rsigma, weight)
    zeros = norm.add_rmsnorm_bwd(grad, torch.zeros_like(x), x, rsigma, weight)
    assert all(map(torch.equal, absent, zeros))


def test_statistics_of_bfloat16_rows_are_not_rounded_to_bfloat16() -> None:
    x = random(64, 100, dtype=torch.bfloat16)
    _, mu, rsigma = norm.layernorm_fwd(x, torch.ones(100))
    exact_mu, exact_rsigma = oracle.layer_norm_statistics(x, 1e-5)
    torch.testing.assert_close(mu.double(), exact_mu, rtol=0, atol=1e-6)
    torch.testing.assert_close(rsigma.double(), exact_rsigma, rtol=1e-6, atol=0)
    assert not torch.equal(rsigma, rsigma.bfloat16().float())


@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
def test_out_dtype_is_what_out_is_rounded_to_and_nothing_before(out_dtype: torch.dtype) -> None:
    x, weight = random(8, 33, dtype=torch.bfloat16), random(33, dtype=torch.bfloat16, seed=1)
    out, _ = norm.rmsnorm_fwd(x, weight, out_dtype=out_dtype)
    exact = oracle.rms_norm(x, weight, 1e-5, False)
    assert out.dtype is out_dtype
    oracle.assert_near(out, exact, exact.abs(), torch.float32)


def test_a_wide_weight_of_a_narrow_input_is_not_rounded() -> None:
    x, weight = random(8, 33, dtype=torch.bfloat16), 1 + random(33, seed=1) / 4096
    out, _ = norm.rmsnorm_fwd(x, weight, out_dtype=torch.float32)
    exact = oracle.rms_norm(x, weight, 1e-5, False)
    oracle.assert_near(out, exact, exact.abs(), torch.float32)


def test_one_is_added_to_a_zero_centered_weight_in_float32() -> None:
    x, weight = random(8, 33, dtype=torch.bfloat16), (random(33, seed=1) / 4096).bfloat16()
    out, _ = norm.rmsnorm_fwd(x, weight, zero_centered_gamma=True, out_dtype=torch.float32)
    exact = oracle.rms_norm(x, weight, 1e-5, True)
    oracle.assert_near(out, exact, exact.abs(), torch.float32)


def test_the_variance_survives_a_large_mean() -> None:
    x = random(16, 256).double() + 1e3
    _, _, rsigma = norm.layernorm_fwd(x.float(), torch.ones(256))
    torch.testing.assert_close(
        rsigma.double(), oracle.layer_norm_statistics(x.float(), 1e-5)[1], rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.5])
def test_eps_is_added_to_the_mean_square(eps: float) -> None:
    _, rsigma = norm.rmsnorm_fwd(torch.full((1, 4), 2.0), torch.ones(4), eps)
    assert rsigma.item() == pytest.approx((4.0 + eps) ** -0.5, rel=1e-6)
