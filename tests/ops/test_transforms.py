"""The ops under torch.func: grad, vjp, vmap and their nestings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, func
from torch.nn import functional

import tefl  # noqa: F401 - registers the ops

from .samples.sample import random

ops = torch.ops.tefl
Function = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _no_advice_on_batching() -> Iterator[None]:
    """Torch says once an op that its per-sample loop is slow, which is what the ops promise."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return ops.rmsnorm_fwd(x, weight)[0]


def layer(x: Tensor, weight: Tensor) -> Tensor:
    return ops.layernorm_fwd(x, weight)[0]


def add_rms(x: Tensor, weight: Tensor) -> Tensor:
    out, residual_out, _ = ops.add_rmsnorm_fwd(x, x.cos(), weight)
    return out * residual_out


def torch_rms(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-5)


def torch_layer(x: Tensor, weight: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight)


def torch_add_rms(x: Tensor, weight: Tensor) -> Tensor:
    return torch_rms(x + x.cos(), weight) * (x + x.cos())


pairs = pytest.mark.parametrize(
    ("ours", "theirs"),
    [(rms, torch_rms), (layer, torch_layer), (add_rms, torch_add_rms)],
    ids=["rmsnorm", "layernorm", "add_rmsnorm"],
)


@pytest.fixture
def x() -> Tensor:
    return random(3, 5, 8, dtype=torch.float64)


@pytest.fixture
def weight() -> Tensor:
    return random(8, dtype=torch.float64, seed=1)


def loss(function: Function) -> Function:
    return lambda x, weight: function(x, weight).sin().sum()


@pairs
def test_grad(ours: Function, theirs: Function, x: Tensor, weight: Tensor) -> None:
    got, expected = (func.grad(loss(f), argnums=(0, 1))(x, weight) for f in (ours, theirs))
    torch.testing.assert_close(got, expected)


@pairs
def test_vjp(ours: Function, theirs: Function, x: Tensor, weight: Tensor) -> None:
    (got, pull), (expected, expected_pull) = (func.vjp(f, x, weight) for f in (ours, theirs))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(pull(x), expected_pull(x))


@pairs
@pytest.mark.parametrize("in_dims", [(0, None), (1, None), (2, None)], ids=str)
def test_vmap_over_any_dimension_of_the_input(
    ours: Function, theirs: Function, x: Tensor, in_dims: tuple[int, None]
) -> None:
    n = [size for dim, size in enumerate(x.shape) if dim != in_dims[0]][-1]
    got, expected = (func.vmap(f, in_dims)(x, random(n, dtype=torch.float64)) for f in (ours, theirs))
    torch.testing.assert_close(got, expected)


@pairs
def test_vmap_over_weights(ours: Function, theirs: Function, x: Tensor) -> None:
    weights = random(4, 8, dtype=torch.float64)
    got, expected = (func.vmap(f, (None, 0))(x, weights) for f in (ours, theirs))
    torch.testing.assert_close(got, expected)


@pairs
def test_gradients_per_sample(ours: Function, theirs: Function, x: Tensor, weight: Tensor) -> None:
    got, expected = (
        func.vmap(func.grad(loss(f), argnums=(0, 1)), (0, None))(x, weight) for f in (ours, theirs)
    )
    torch.testing.assert_close(got, expected)


@pairs
def test_the_gradient_of_a_vmap(ours: Function, theirs: Function, x: Tensor, weight: Tensor) -> None:
    got, expected = (
        func.grad(loss(func.vmap(f, (0, None))), argnums=(0, 1))(x, weight) for f in (ours, theirs)
    )
    torch.testing.assert_close(got, expected)


@pairs
def test_a_vmap_is_differentiated_by_autograd(
    ours: Function, theirs: Function, x: Tensor, weight: Tensor
) -> None:
    leaves = x.requires_grad_(), weight.requires_grad_()
    got, expected = (
        torch.autograd.grad(func.vmap(f, (0, None))(*leaves).sin().sum(), leaves) for f in (ours, theirs)
    )
    torch.testing.assert_close(got, expected)


@pairs
def test_jacrev(ours: Function, theirs: Function, weight: Tensor) -> None:
    x = random(2, 8, dtype=torch.float64)
    got, expected = (func.jacrev(f, argnums=(0, 1))(x, weight) for f in (ours, theirs))
    torch.testing.assert_close(got, expected)


@pairs
def test_what_vjp_returns_is_differentiated_by_autograd(
    ours: Function, theirs: Function, x: Tensor, weight: Tensor
) -> None:
    leaves = x.requires_grad_(), weight.requires_grad_()
    got, expected = (torch.autograd.grad(func.vjp(f, *leaves)[0].sin().sum(), leaves) for f in (ours, theirs))
    torch.testing.assert_close(got, expected)


@pairs
def test_grad_inside_grad_is_an_error(ours: Function, theirs: Function, x: Tensor, weight: Tensor) -> None:
    def of_gradient(function: Function) -> Tensor:
        return func.grad(lambda x: func.grad(loss(function))(x, weight).square().sum())(x)

    assert of_gradient(theirs).abs().max() > 0  # so zeros would be wrong
    with pytest.raises(NotImplementedError, match="has no derivative"):
        of_gradient(ours)


@pairs
def test_autograd_through_grad_is_an_error(
    ours: Function, theirs: Function, x: Tensor, weight: Tensor
) -> None:
    weight.requires_grad_()
    gradient = func.grad(loss(ours))(x, weight)
    assert gradient.requires_grad
    with pytest.raises(NotImplementedError, match="has no derivative"):
        gradient.sum().backward()


@pairs
@pytest.mark.parametrize("transform", [func.jacfwd, func.hessian], ids=["jacfwd", "hessian"])
def test_forward_mode_is_an_error(
    ours: Function,
    theirs: Function,
    x: Tensor,
    weight: Tensor,
    transform: Callable[..., Callable[..., Tensor]],
) -> None:
    with pytest.raises(NotImplementedError, match="forward-mode"):
        transform(loss(ours))(x, weight)


@pairs
@pytest.mark.parametrize("gradients", [True, False])
def test_jvp_is_an_error(
    ours: Function, theirs: Function, x: Tensor, weight: Tensor, gradients: bool
) -> None:
    with torch.set_grad_enabled(gradients), pytest.raises(NotImplementedError, match="forward-mode"):
        func.jvp(lambda x: ours(x, weight), (x,), (x,))


def test_parameters_are_passed_in_by_functional_call(x: Tensor, weight: Tensor) -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(8, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return rms(x, self.weight)

    module = Norm()
    got = func.grad(lambda p: func.functional_call(module, p, (x,)).sin().sum())({"weight": weight})
    expected = func.grad(lambda weight: torch_rms(x, weight).sin().sum())(weight)
    torch.testing.assert_close(got["weight"], expected)
