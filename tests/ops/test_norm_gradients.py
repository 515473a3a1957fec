"""Gradients of the norm ops as autograd gives them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import tefl  # noqa: F401 - registers the ops

from . import oracle
from .samples.sample import awkward, random

ops = torch.ops.tefl

zero_centered = pytest.mark.parametrize("zero_centered", [False, True], ids=["gamma", "gamma+1"])
every_input = pytest.mark.parametrize(
    "x", [pytest.param(x, id=label) for label, x in awkward(torch.float64) if x.numel() < 150]
)


def leaf(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return random(*shape, dtype=dtype, seed=seed).requires_grad_()


def leaf_like(x: Tensor) -> Tensor:
    """A leaf with x's values and strides."""
    return x.detach().requires_grad_()


@every_input
@zero_centered
def test_rmsnorm_passes_gradcheck(x: Tensor, zero_centered: bool) -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return ops.rmsnorm_fwd(x, weight, 1e-3, zero_centered_gamma=zero_centered)[0]

    assert gradcheck(function, (leaf_like(x.clone()), leaf(x.shape[-1], seed=1)))


@every_input
@zero_centered
def test_layernorm_passes_gradcheck(x: Tensor, zero_centered: bool) -> None:
    def function(*leaves: Tensor) -> Tensor:
        return ops.layernorm_fwd(*leaves, 1e-2, zero_centered_gamma=zero_centered)[0]

    assert gradcheck(function, (leaf_like(x.clone()), leaf(x.shape[-1], seed=1), leaf(x.shape[-1], seed=2)))


def test_layernorm_without_bias_passes_gradcheck() -> None:
    assert gradcheck(lambda *leaves: ops.layernorm_fwd(*leaves)[0], (leaf(4, 6), leaf(6, seed=1)))


@every_input
@zero_centered
def test_both_results_of_add_rmsnorm_pass_gradcheck(x: Tensor, zero_centered: bool) -> None:
    def function(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        out, residual_out, _ = ops.add_rmsnorm_fwd(*leaves, 1e-3, zero_centered_gamma=zero_centered)
        return out, residual_out

    residual = random(*x.shape, dtype=torch.float64, seed=3).requires_grad_()
    assert gradcheck(function, (leaf_like(x.clone()), residual, leaf(x.shape[-1], seed=1)))


@pytest.mark.parametrize("used", ["out", "residual_out"])
def test_add_rmsnorm_is_differentiated_when_only_one_result_is_used(used: str) -> None:
    x, residual, weight = leaf(4, 6), leaf(4, 6, seed=1), leaf(6, seed=2)
    out, residual_out, _ = ops.add_rmsnorm_fwd(x, residual, weight)
    {"out": out, "residual_out": residual_out}[used].square().sum().backward()
    copies = [t.detach().clone().requires_grad_() for t in (x, residual, weight)]
    summed = copies[0] + copies[1]
    exact = {"out": oracle.rms_norm(summed, copies[2], 1e-5, False), "residual_out": summed}[used]
    exact.square().sum().backward()
    assert x.grad is not None
    assert residual.grad is not None
    assert weight.grad is not None
    torch.testing.assert_close(x.grad, copies[0].grad)
    torch.testing.assert_close(residual.grad, copies[1].grad)
    torch.testing.assert_close(weight.grad, copies[2].grad if used == "out" else torch.zeros(6).double())


def test_input_and_residual_may_be_one_tensor() -> None:
    x, weight = leaf(4, 6), leaf(6, seed=1)
    out, residual_out, _ = ops.add_rmsnorm_fwd(x, x, weight)
    (got,) = torch.autograd.grad((out * residual_out).sum(), x)
    exact = oracle.rms_norm(2 * x, weight, 1e-5, False) * 2 * x
    torch.testing.assert_close(got, torch.autograd.grad(exact.sum(), x)[0])


FORWARDS: dict[str, Callable[..., Tensor]] = {
    "rmsnorm": lambda x, weight, bias, **options: ops.rmsnorm_fwd(x, weight, **options)[0],
    "layernorm": lambda x, weight, bias, **options: ops.layernorm_fwd(x, weight, bias, **options)[0],
    "add_rmsnorm": lambda x, weight, bias, **options: ops.add_rmsnorm_fwd(x, x, weight, **options)[0],
}
forwards = pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS)


@forwards
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("out_dtype", [None, torch.float32, torch.float16], ids=str)
def test_a_gradient_has_the_dtype_of_its_input(
    forward: Callable[..., Tensor],
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    out_dtype: torch.dtype | None,
) -> None:
    x = leaf(4, 8, dtype=dtype)
    weight, bias = leaf(8, dtype=weight_dtype, seed=1), leaf(8, dtype=weight_dtype, seed=2)
    out = forward(x, weight, bias, out_dtype=out_dtype)
    assert out.dtype is (out_dtype or dtype)
    out.square().sum().backward()
    for tensor in (x, weight, bias)[: 3 if bias.grad is not None else 2]:
        assert tensor.grad is not None
        assert tensor.grad.dtype is tensor.dtype
        assert tensor.grad.shape == tensor.shape


@forwards
def test_out_dtype_changes_a_gradient_by_nothing_but_the_rounding_of_out(
    forward: Callable[..., Tensor],
) -> None:
    x, weight, bias = leaf(8, 16), leaf(16, seed=1), leaf(16, seed=2)
    grad = random(8, 16, seed=3)
    (narrow,) = torch.autograd.grad(forward(x, weight, bias, out_dtype=torch.float32), x, grad)
    (wide,) = torch.autograd.grad(forward(x, weight, bias), x, grad.double())
    assert torch.equal(narrow, wide)


@forwards
@pytest.mark.parametrize("wanted", ["x", "weight", "bias"])
def test_only_what_requires_grad_gets_a_gradient(forward: Callable[..., Tensor], wanted: str) -> None:
    tensors = {"x": random(4, 8), "weight": random(8, seed=1), "bias": random(8, seed=2)}
    tensors[wanted].requires_grad_()
    out = forward(**tensors)
    if not out.requires_grad:
        assert wanted == "bias"  # the op has none
        return
    out.square().sum().backward()
    assert {name for name, tensor in tensors.items() if tensor.grad is not None} == {wanted}
    every = {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}
    forward(**every).square().sum().backward()
    assert tensors[wanted].grad is not None
    assert torch.equal(tensors[wanted].grad, every[wanted].grad)


@forwards
def test_no_rows_give_weight_a_gradient_of_zeros(forward: Callable[..., Tensor]) -> None:
    x, weight, bias = leaf(0, 8), leaf(8, seed=1), leaf(8, seed=2)
    forward(x, weight, bias).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 8)
    assert torch.equal(weight.grad, torch.zeros(8).double())


@forwards
def test_a_gradient_with_strides_of_its_own_is_taken(forward: Callable[..., Tensor]) -> None:
    x, weight, bias = leaf(4, 8), leaf(8, seed=1), leaf(8, seed=2)
    grad = random(8, 4, dtype=torch.float64).t()
    (got,) = torch.autograd.grad(forward(x, weight, bias), x, grad)
    (expected,) = torch.autograd.grad(forward(x, weight, bias), x, grad.contiguous())
    torch.testing.assert_close(got, expected)
    (summed,) = torch.autograd.grad(forward(x, weight, bias).sum(), x)  # a grad of strides 0
    (ones,) = torch.autograd.grad(forward(x, weight, bias), x, torch.ones(4, 8).double())
    torch.testing.assert_close(summed, ones)
