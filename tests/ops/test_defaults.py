"""An implementation gets every argument, so that its own defaults never count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tefl

from .samples.sample import random

ops = torch.ops.tefl

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def plug() -> Iterator[Callable[[str, Callable[..., Any]], None]]:
    """Register a vendor's implementation of an op, which is then the preferred one."""
    with tefl.with_preference("vendor"):
        names: list[str] = []

        def register(op_name: str, function: Callable[..., Any]) -> None:
            names.append(op_name)
            tefl.get_registry().register_impl(
                tefl.OpImpl(
                    op_name=op_name,
                    impl_id="vendor.defaults",
                    kind="vendor",
                    vendor="acme",
                    fn=function,
                    priority=200,
                )
            )

        yield register
        for name in names:
            tefl.get_registry().unregister("vendor.defaults", name)


def rmsnorm_with_an_eps_of_its_own(
    input: Tensor, weight: Tensor, eps: float = 0.5, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    rsigma = torch.rsqrt(input.square().mean(-1) + eps)
    return input * rsigma.unsqueeze(-1) * weight, rsigma


@pytest.mark.parametrize("eps", [(), (1e-5,)], ids=["left out", "given"])
@pytest.mark.parametrize("gradients", [True, False])
def test_the_schemas_eps_counts_and_not_the_plugins(
    plug: Callable[..., None], eps: tuple[float, ...], gradients: bool
) -> None:
    plug("rmsnorm_fwd", rmsnorm_with_an_eps_of_its_own)
    x, weight = random(4, 8).requires_grad_(gradients), random(8)
    with tefl.record() as calls:
        _, rsigma = ops.rmsnorm_fwd(x, weight, *eps)
    assert [impl for _, impl, _ in calls] == ["vendor.defaults"]
    torch.testing.assert_close(rsigma, (x.detach().square().mean(-1) + 1e-5) ** -0.5)


@pytest.mark.parametrize(
    ("op", "args", "names"),
    [
        ("rmsnorm_fwd", (random(2, 4), random(4)), ["zero_centered_gamma", "out_dtype"]),
        ("layernorm_fwd", (random(2, 4), random(4)), ["zero_centered_gamma", "out_dtype"]),
        ("add_rmsnorm_fwd", (random(2, 4), random(2, 4), random(4)), ["zero_centered_gamma", "out_dtype"]),
    ],
)
def test_every_option_is_given_by_keyword(
    plug: Callable[..., None], op: str, args: tuple[Tensor, ...], names: list[str]
) -> None:
    seen: Calls = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        raise tefl.NotSupported("only looking")

    plug(op, spy)
    getattr(ops, op)(*args)
    ((positional, keyword),) = seen
    assert positional[len(args) :] == ((None, 1e-5) if op == "layernorm_fwd" else (1e-5,))
    assert keyword == dict.fromkeys(names, None) | {"zero_centered_gamma": False}


@pytest.mark.parametrize("bias_grad", [True, False])
def test_the_backward_says_whether_the_bias_gradient_is_wanted(
    plug: Callable[..., None], bias_grad: bool
) -> None:
    seen: Calls = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        raise tefl.NotSupported("only looking")

    plug("layernorm_bwd", spy)
    x, weight = random(2, 4).requires_grad_(), random(4).requires_grad_()
    bias = random(4).requires_grad_(bias_grad)
    ops.layernorm_fwd(x, weight, bias, zero_centered_gamma=True)[0].sum().backward()
    ((_, keyword),) = seen
    assert keyword == {"zero_centered_gamma": True, "bias_grad": bias_grad}
    assert (bias.grad is not None) == bias_grad


@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_the_gradient_of_an_unused_residual_is_none_and_not_zeros(
    plug: Callable[..., None], used: bool
) -> None:
    seen: Calls = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        raise tefl.NotSupported("only looking")

    plug("add_rmsnorm_bwd", spy)
    x, weight = random(2, 4).requires_grad_(), random(4)
    out, residual_out, _ = ops.add_rmsnorm_fwd(x, x, weight)
    (out + residual_out if used else out).sum().backward()
    (((_, grad_residual_out, *_), _),) = seen
    assert (grad_residual_out is not None) == used


def test_out_dtype_arrives_as_a_dtype(plug: Callable[..., None]) -> None:
    seen: list[Any] = []

    def spy(*args: Any, out_dtype: torch.dtype, **kwargs: Any) -> Any:
        seen.append(out_dtype)
        raise tefl.NotSupported("only looking")

    plug("rmsnorm_fwd", spy)
    ops.rmsnorm_fwd(random(2, 4), random(4), out_dtype=torch.bfloat16)
    assert seen == [torch.bfloat16]
