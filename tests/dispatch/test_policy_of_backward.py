"""The eager backward of a graph follows the policy under which the graph was recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tefl
from tefl.dispatch.native import is_attached


@pytest.fixture(autouse=True)
def spy() -> Iterator[None]:
    """An implementation of vendor "spy" beside the reference, for forward and backward."""
    registry = tefl.get_registry()
    tefl.get_manager().ensure_ready()
    for op in ("rmsnorm_fwd", "rmsnorm_bwd"):
        fn = registry.get(op, "reference.torch").fn
        registry.register_impl(tefl.OpImpl(op, "vendor.spy", "vendor", fn, vendor="spy"))
    yield
    registry.unregister("vendor.spy")


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4, requires_grad=True), torch.ones(4, requires_grad=True)


def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.ops.tefl.rmsnorm_fwd(x, w)[0].sum()


def used(calls: dict) -> dict[str, str]:
    return {op: impl_id for op, impl_id, _ in calls}


def test_backward_outside_the_context_of_its_forward_follows_that_context() -> None:
    with tefl.record() as calls:
        with tefl.with_preference("vendor"):
            loss = forward(*leaves())
        loss.backward()
    assert used(calls) == {"rmsnorm_fwd": "vendor.spy", "rmsnorm_bwd": "vendor.spy"}


def test_a_context_around_backward_does_not_touch_a_graph_recorded_outside() -> None:
    loss = forward(*leaves())
    with tefl.record() as calls, tefl.with_preference("reference"):
        loss.backward()
    assert used(calls) == {"rmsnorm_bwd": "vendor.spy"}


def test_graphs_of_two_contexts_keep_their_own_policies_in_one_backward() -> None:
    x, w = leaves()
    with tefl.with_preference("vendor"):
        first = forward(x, w)
    with tefl.with_preference("reference"):
        second = forward(x, w)
    with tefl.record() as calls:
        (first + second).backward()
    assert calls == {("rmsnorm_bwd", "vendor.spy", "cpu"): 1, ("rmsnorm_bwd", "reference.torch", "cpu"): 1}


def test_the_policy_after_backward_is_what_it_was_before() -> None:
    with tefl.with_preference("vendor"):
        loss = forward(*leaves())
    with tefl.with_preference("reference"):
        loss.backward()
        assert tefl.dispatch.policy.current_policy().prefer == "reference"
    assert tefl.dispatch.policy.open_contexts == 0


@pytest.mark.skipif(not is_attached(), reason="tests the compiled node, which was not built")
def test_backwards_inside_a_context_hold_on_to_it_no_longer_than_they_run() -> None:
    x, w = leaves()
    with tefl.with_preference("vendor"):
        frame = tefl.dispatch.policy.FRAME.get()
        before = sys.getrefcount(frame)
        for _ in range(100):
            forward(x, w).backward()
        assert sys.getrefcount(frame) <= before + 2  # the last backward's may still be held


def test_checkpoint_contexts_keep_the_policy_for_the_recomputation() -> None:
    with tefl.record() as calls:
        with tefl.with_preference("vendor"):
            x, w = leaves()
            loss = checkpoint(forward, x, w, use_reentrant=False, context_fn=tefl.checkpoint_contexts)
        loss.backward()
    assert calls == {("rmsnorm_fwd", "vendor.spy", "cpu"): 2, ("rmsnorm_bwd", "vendor.spy", "cpu"): 1}
