"""The native node where an implementation, a policy or a graph does something unusual."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import tefl
from tefl.dispatch.native import is_attached
from tefl.dispatch.policy import current_policy, current_token

pytestmark = pytest.mark.skipif(not is_attached(), reason="tests the compiled node, which was not built")

rmsnorm = torch.ops.tefl.rmsnorm_fwd


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 4, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def weight() -> Tensor:
    return torch.randn(4, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def plug() -> Iterator[Callable[[str, Callable[..., Any]], None]]:
    """Register a vendor's implementation of an op, which is then the preferred one."""
    registry, names = tefl.get_registry(), []

    def plug(op: str, fn: Callable[..., Any]) -> None:
        names.append(op)
        registry.register_impl(tefl.OpImpl(op, "vendor.odd", "vendor", fn, vendor="odd", priority=500))

    tefl.set_global_policy(tefl.SelectionPolicy(prefer="vendor"))
    yield plug
    for name in names:
        registry.unregister("vendor.odd", name)
    tefl.reset_global_policy()


def reference(op: str) -> Callable[..., Any]:
    return tefl.get_registry().get(op, "reference.torch").fn


def test_no_python_runs_between_the_op_and_its_implementation(x: Tensor, weight: Tensor) -> None:
    out = rmsnorm(x, weight)[0]
    assert not isinstance(out.grad_fn, torch.autograd.function.BackwardCFunction)


def test_an_argument_handed_back_keeps_its_own_history(plug, x: Tensor, weight: Tensor) -> None:
    plug("rmsnorm_fwd", lambda input, weight, eps, **_: (input, input.new_ones(3)))
    middle = x * 3
    history = middle.grad_fn
    for leaf_or_not in (x, middle):
        out, _ = rmsnorm(leaf_or_not, weight)
        assert out is not leaf_or_not
        assert out.grad_fn.name() == "rmsnorm_fwdBackward"
    assert x.is_leaf
    assert middle.grad_fn is history


def test_results_that_are_handed_out_twice_have_a_history_each(plug, x: Tensor, weight: Tensor) -> None:
    kept = torch.ones(3, 4, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    plug("rmsnorm_fwd", lambda *args, **kwargs: kept)
    first, second = rmsnorm(x, weight)[0], rmsnorm(x * 2, weight)[0]
    assert first.grad_fn is not second.grad_fn
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert gradient.shape == x.shape


def test_code_inside_a_backward_sees_the_policy_of_the_forward(plug, x: Tensor, weight: Tensor) -> None:
    seen = []

    def backward(*args: Any, **kwargs: Any) -> Any:
        with tefl.with_preference("reference"):
            inner = current_policy().prefer
        seen.append((current_policy().prefer, inner, current_policy().prefer))
        return reference("rmsnorm_bwd")(*args, **kwargs)

    plug("rmsnorm_bwd", backward)
    with tefl.with_preference("vendor"):
        token, loss = current_token(), rmsnorm(x, weight)[0].sum()
    tefl.set_global_policy(tefl.SelectionPolicy(prefer="flagos"))
    for _ in range(3):
        loss.backward(retain_graph=True)
    assert token > 0
    assert seen == [("vendor", "reference", "vendor")] * 3
    assert current_token() == 0


def test_a_backward_that_raises_leaves_the_policy_as_it_was(plug, x: Tensor, weight: Tensor) -> None:
    def backward(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError

    plug("rmsnorm_bwd", backward)
    with tefl.with_preference("vendor"):
        loss = rmsnorm(x, weight)[0].sum()
    with pytest.raises(MemoryError):
        loss.backward()
    assert current_token() == 0


def test_a_recomputation_inside_a_backward_has_the_policy_of_its_own_contexts(plug, x, weight) -> None:
    """The unpacking of saved tensors runs other people's code, which the node's policy does not concern."""
    seen = []

    def unpack(tensor: Tensor) -> Tensor:
        seen.append(current_token())
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack),
        tefl.with_preference("vendor"),
    ):
        loss = rmsnorm(x, weight)[0].sum()
    loss.backward()
    assert seen == [0] * 3


def test_many_threads_record_and_differentiate_at_once(weight: Tensor) -> None:
    def gradient(seed: int) -> bool:
        x = torch.randn(
            5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        ).requires_grad_()
        expected = torch.autograd.grad(
            torch.nn.functional.rms_norm(x, (4,), weight, 1e-5).square().sum(), (x, weight)
        )
        return all(
            map(
                torch.allclose,
                torch.autograd.grad(rmsnorm(x, weight)[0].square().sum(), (x, weight)),
                expected,
            )
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(gradient, range(200)))


def test_one_graph_is_differentiated_by_many_threads_at_once(x: Tensor, weight: Tensor) -> None:
    loss = rmsnorm(x, weight)[0].square().sum()
    expected = torch.autograd.grad(loss, (x, weight), retain_graph=True)

    def gradients(_: int) -> bool:
        return all(map(torch.equal, torch.autograd.grad(loss, (x, weight), retain_graph=True), expected))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(gradients, range(200)))


def test_what_is_saved_goes_with_the_graph(x: Tensor, weight: Tensor) -> None:
    middle = x * 2
    alive = weakref.ref(middle)
    loss = rmsnorm(middle, weight)[0].sum()
    del middle
    assert alive() is None or torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward()
    gc.collect()
    assert alive() is None
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_an_op_over_lists_has_no_derivative_and_says_so(register_op) -> None:
    schema = "(Tensor[] inputs, Tensor? bias=None) -> Tensor"
    op = register_op(
        schema, lambda inputs, bias=None: torch.empty_like(inputs[0]), lambda inputs, bias: sum(inputs)
    )
    leaf = torch.ones(2, requires_grad=True)
    for _ in range(2):
        out = op([leaf.detach(), leaf])
        assert out.requires_grad
        with pytest.raises(NotImplementedError, match=f"tefl::{op.__name__} has no derivative"):
            out.sum().backward()
    assert not op([leaf.detach()] * 3).requires_grad
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            op([torch.ones(2), dual])


def test_only_the_gradients_that_are_asked_for_are_handed_on(x: Tensor, weight: Tensor) -> None:
    out = rmsnorm(x, weight)[0].sum()
    (only,) = torch.autograd.grad(out, weight, retain_graph=True)
    both = torch.autograd.grad(out, (x, weight))
    assert torch.equal(only, both[1])
    assert weight.grad is None


@pytest.mark.parametrize("members", ["Tensor[]", "Tensor?[]"])
def test_a_gradient_to_a_tensor_in_a_list_is_refused_rather_than_dropped(members: str, register_op) -> None:
    derivative = register_op("(Tensor grad) -> Tensor", torch.empty_like, torch.clone)
    op = register_op(
        f"(Tensor x, {members} others) -> Tensor",
        lambda x, _: torch.empty_like(x),
        lambda x, others: x + sum(others),
        backward=tefl.dispatch.Backward(derivative.__name__, (("grad", 0),), {"x": 0}),
    )
    leaf, plain = torch.ones(2, requires_grad=True), torch.ones(2)
    for x in (leaf, plain):
        with pytest.raises(
            NotImplementedError, match=f"tefl::{op.__name__} has no derivative .* list others"
        ):
            op(x, [plain, leaf])
    with torch.no_grad():
        assert op(plain, [plain, leaf]).tolist() == [3.0, 3.0]
    op(leaf, [plain, leaf.detach()]).sum().backward()
    assert leaf.grad is not None
