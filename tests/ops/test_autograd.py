"""What autograd derives from a declaration: nodes, what they save, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import tefl
from tefl.dispatch.types import Backward, OpDecl

from .samples.sample import random

ops = torch.ops.tefl


@pytest.fixture
def x() -> Tensor:
    return random(4, 8).requires_grad_()


@pytest.fixture
def weight() -> Tensor:
    return random(8, seed=1).requires_grad_()


DIFFERENTIABLE: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "rmsnorm_fwd": lambda x, weight: ops.rmsnorm_fwd(x, weight),
    "layernorm_fwd": lambda x, weight: ops.layernorm_fwd(x, weight),
    "add_rmsnorm_fwd": lambda x, weight: ops.add_rmsnorm_fwd(x, x, weight),
}
forwards = pytest.mark.parametrize("forward", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)

BACKWARDS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "rmsnorm_bwd": lambda x, weight: ops.rmsnorm_bwd(x, x, x.detach()[:, 0].clone(), weight),
    "rmsnorm_bwd_add": lambda x, weight: ops.rmsnorm_bwd_add(x, x, x, x.detach()[:, 0].clone(), weight),
    "layernorm_bwd": lambda x, weight: ops.layernorm_bwd(
        x, x, x.detach()[:, 1].clone(), x.detach()[:, 0].clone(), weight
    ),
    "add_rmsnorm_bwd": lambda x, weight: ops.add_rmsnorm_bwd(x, None, x, x.detach()[:, 0].clone(), weight),
}
backwards = pytest.mark.parametrize("backward", BACKWARDS.values(), ids=BACKWARDS)


# --- what is recorded ---


@pytest.mark.parametrize(
    ("name", "carry"),
    [
        ("rmsnorm_fwd", [True, False]),
        ("layernorm_fwd", [True, False, False]),
        ("add_rmsnorm_fwd", [True, True, False]),
    ],
)
def test_statistics_carry_no_gradient(x: Tensor, weight: Tensor, name: str, carry: list[bool]) -> None:
    assert [result.requires_grad for result in DIFFERENTIABLE[name](x, weight)] == carry


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_node_is_named_after_its_op(x: Tensor, weight: Tensor, name: str) -> None:
    out = DIFFERENTIABLE[name](x, weight)[0]
    assert out.grad_fn is not None
    assert out.grad_fn.name() == f"{name}Backward"


@forwards
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_recorded_where_gradients_are_off(
    x: Tensor, weight: Tensor, forward: Callable[..., tuple[Tensor, ...]], mode: type
) -> None:
    with mode():
        assert not any(result.requires_grad for result in forward(x, weight))


@forwards
def test_nothing_is_recorded_for_arguments_without_gradient(
    forward: Callable[..., tuple[Tensor, ...]],
) -> None:
    assert not any(result.requires_grad for result in forward(random(4, 8), random(8)))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("rmsnorm_fwd", [(4, 8), (4,), (8,)]),
        ("layernorm_fwd", [(4, 8), (4,), (4,), (8,)]),
        ("add_rmsnorm_fwd", [(4, 8), (4,), (8,)]),
    ],
)
def test_exactly_what_the_backward_needs_is_saved_where_hooks_see_it(
    x: Tensor, weight: Tensor, name: str, shapes: list[tuple[int, ...]]
) -> None:
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        packed.append(tensor.detach().clone())
        return len(packed) - 1

    with saved_tensors_hooks(pack, lambda index: packed[index]):
        out = DIFFERENTIABLE[name](x, weight)[0]
    assert [tuple(tensor.shape) for tensor in packed] == shapes
    (hooked,) = torch.autograd.grad(out.square().sum(), x)
    (plain,) = torch.autograd.grad(DIFFERENTIABLE[name](x, weight)[0].square().sum(), x)
    assert torch.equal(hooked, plain)


@forwards
def test_changing_a_saved_tensor_in_place_is_an_error(
    x: Tensor, weight: Tensor, forward: Callable[..., tuple[Tensor, ...]]
) -> None:
    out = forward(x, weight)[0]
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@forwards
def test_a_graph_is_freed_by_the_first_backward_unless_it_is_retained(
    x: Tensor, weight: Tensor, forward: Callable[..., tuple[Tensor, ...]]
) -> None:
    loss = forward(x, weight)[0].square().sum()
    first = torch.autograd.grad(loss, (x, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (x, weight))
    assert all(map(torch.equal, first, second))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, (x, weight))


@forwards
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpointed_op_has_the_same_gradients(
    x: Tensor, weight: Tensor, forward: Callable[..., tuple[Tensor, ...]], use_reentrant: bool
) -> None:
    def block(x: Tensor, weight: Tensor) -> Tensor:
        return forward(x.sin(), weight)[0].square().sum()

    plain = torch.autograd.grad(block(x, weight), (x, weight))
    checkpoint(block, x, weight, use_reentrant=use_reentrant).backward()
    assert torch.equal(x.grad, plain[0])
    assert torch.equal(weight.grad, plain[1])


@forwards
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_mode_finds_nothing_wrong(
    x: Tensor, weight: Tensor, forward: Callable[..., tuple[Tensor, ...]]
) -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        forward(x, weight)[0].sum().backward()
    assert x.grad is not None


@forwards
def test_an_undefined_gradient_stays_undefined(
    x: Tensor, weight: Tensor, forward: Callable[..., tuple[Tensor, ...]]
) -> None:
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> None:
            return None

    with tefl.record() as calls:
        Cut.apply(forward(x, weight)[0]).sum().backward()
    assert x.grad is None
    assert not [op for op, *_ in calls if op.endswith("bwd")]


# --- under which policy ---


@pytest.fixture
def vendor_backward() -> Iterator[str]:
    """An implementation of rmsnorm_bwd that only a preference for vendors chooses."""
    impl = tefl.OpImpl(
        op_name="rmsnorm_bwd",
        impl_id="vendor.backward",
        kind="vendor",
        vendor="acme",
        fn=lambda grad, input, rsigma, weight, *, zero_centered_gamma: (
            torch.zeros_like(input),
            torch.zeros_like(weight),
        ),
    )
    tefl.get_registry().register_impl(impl)
    with tefl.with_preference("reference"):
        yield impl.impl_id
    tefl.get_registry().unregister(impl.impl_id)


def test_a_backward_follows_the_policy_of_its_forward(
    x: Tensor, weight: Tensor, vendor_backward: str
) -> None:
    with tefl.with_preference("vendor"):
        inside = ops.rmsnorm_fwd(x, weight)[0]
    outside = ops.rmsnorm_fwd(x, weight)[0]
    with tefl.record() as calls:
        inside.sum().backward()
    assert [impl for op, impl, _ in calls] == [vendor_backward]
    with tefl.record() as calls, tefl.with_preference("vendor"):
        outside.sum().backward()
    assert [impl for op, impl, _ in calls] == ["reference.torch"]


def test_the_error_of_a_backward_implementation_is_the_callers(x: Tensor, weight: Tensor) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise LookupError("no such table")

    impl = tefl.OpImpl(
        op_name="rmsnorm_bwd", impl_id="vendor.broken", kind="vendor", vendor="acme", fn=broken
    )
    tefl.get_registry().register_impl(impl)
    try:
        order = {"rmsnorm_bwd": "vendor:acme"}
        with tefl.policy_context(tefl.SelectionPolicy(strict=True, per_op_order=order)):
            out = ops.rmsnorm_fwd(x, weight)[0]
        with pytest.raises(LookupError, match="no such table"):
            out.sum().backward()
    finally:
        tefl.get_registry().unregister("vendor.broken")


# --- what is refused ---


@forwards
def test_a_second_derivative_is_an_error_and_the_first_is_not(
    x: Tensor, weight: Tensor, forward: Callable[..., tuple[Tensor, ...]]
) -> None:
    (first,) = torch.autograd.grad(forward(x, weight)[0].square().sum(), x, create_graph=True)
    (plain,) = torch.autograd.grad(forward(x, weight)[0].square().sum(), x)
    assert torch.equal(first.detach(), plain)
    with pytest.raises(NotImplementedError, match=r"tefl::\w+_bwd has no derivative"):
        first.sum().backward()


@backwards
def test_a_backward_op_may_be_called_on_what_requires_grad(
    x: Tensor, weight: Tensor, backward: Callable[..., tuple[Tensor, ...]]
) -> None:
    results = backward(x, weight)
    plain = backward(x.detach(), weight.detach())
    assert all(torch.equal(a.detach(), b) for a, b in zip(results, plain, strict=True))
    with pytest.raises(NotImplementedError, match="has no derivative"):
        results[0].sum().backward()


@pytest.mark.parametrize(
    "call", [*DIFFERENTIABLE.values(), *BACKWARDS.values()], ids=[*DIFFERENTIABLE, *BACKWARDS]
)
@pytest.mark.parametrize("which", ["x", "weight"])
@pytest.mark.parametrize("gradients", [True, False])
def test_forward_mode_is_an_error(
    call: Callable[..., tuple[Tensor, ...]], which: str, gradients: bool
) -> None:
    tensors = {"x": random(4, 8), "weight": random(8)}
    with forward_ad.dual_level(), torch.set_grad_enabled(gradients):
        tensors[which] = forward_ad.make_dual(tensors[which], torch.ones_like(tensors[which]))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            call(**tensors)


def test_tensors_without_tangents_pass_inside_a_dual_level(x: Tensor, weight: Tensor) -> None:
    with forward_ad.dual_level():
        assert ops.rmsnorm_fwd(x, weight)[0].requires_grad


# --- what the data of a declaration can say ---


@pytest.fixture(scope="module")
def power() -> Iterator[Callable[..., Tensor]]:
    """An op of one result: ``test_power(x, offset, exponent) = (x + offset) ** exponent``."""

    def power(x: Tensor, offset: Tensor | None, exponent: int, *, scale: float = 1.0) -> Tensor:
        return scale * (x if offset is None else x + offset) ** exponent

    def power_bwd(
        exponent: int, grad: Tensor, x: Tensor, offset: Tensor | None, needs_offset: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        base = x if offset is None else x + offset
        gradient = scale * grad * exponent * base ** (exponent - 1)
        return (gradient.clone() if needs_offset else gradient.new_empty(0)), gradient

    tefl.ops.register(
        OpDecl(
            name="test_power",
            family="test",
            schema="(Tensor x, Tensor? offset, int exponent, *, float scale=1.0) -> Tensor",
            fake=lambda x, offset, exponent, *, scale=1.0: torch.empty_like(x),
            reference=power,
            backward=Backward(
                op="test_power_bwd",
                args=(
                    ("input", "exponent"),
                    ("grad", 0),
                    ("input", "x"),
                    ("input", "offset"),
                    ("needs", "offset"),
                    ("input", "scale"),
                ),
                grads={"x": 1, "offset": 0},
            ),
        )
    )
    tefl.ops.register(
        OpDecl(
            name="test_power_bwd",
            family="test",
            schema="(int exponent, Tensor grad, Tensor x, Tensor? offset, bool needs_offset, float scale) "
            "-> (Tensor, Tensor)",
            fake=lambda exponent, grad, x, offset, needs_offset, scale: (
                x.new_empty(x.shape if needs_offset else (0,)),
                torch.empty_like(x),
            ),
            reference=power_bwd,
        )
    )
    impls = [
        tefl.OpImpl(op_name=name, impl_id="reference.power", kind="reference", fn=function)
        for name, function in (("test_power", power), ("test_power_bwd", power_bwd))
    ]
    tefl.get_registry().register_many(impls)
    yield ops.test_power
    tefl.get_registry().unregister("reference.power")


def test_an_op_of_one_result_and_constants_is_differentiated(power: Callable[..., Tensor]) -> None:
    x, offset = random(3, dtype=torch.float64), random(3, dtype=torch.float64, seed=1)
    assert torch.autograd.gradcheck(
        lambda x, offset: power(x, offset, 3, scale=0.5), (x.requires_grad_(), offset.requires_grad_())
    )


def test_an_absent_tensor_is_no_obstacle(power: Callable[..., Tensor]) -> None:
    x = random(3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: power(x, None, 2), (x,))
