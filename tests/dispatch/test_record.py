"""Counting which implementation ran."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tefl
from tefl import NotSupported, OpManager


def test_calls_are_counted_by_op_implementation_and_device_type(manager: OpManager, add, op: str, x) -> None:
    add("default.flagos", supported_dtypes={torch.float32})
    add("reference.torch")
    manager.call(op, x)
    with tefl.record() as calls:
        assert calls == {}
        for y in (x, x, x.double()):
            manager.call(op, y)
        manager.call(op, torch.empty(2, device="meta"))
    manager.call(op, x)
    assert calls == {
        (op, "default.flagos", "cpu"): 2,
        (op, "reference.torch", "cpu"): 1,
        (op, "default.flagos", "meta"): 1,
    }


def test_what_serves_the_call_is_counted_and_the_fallback_beside_it(
    manager: OpManager, add, implementation, op: str, x: torch.Tensor
) -> None:
    add("default.flagos", implementation(error=RuntimeError("boom")))
    add("reference.torch")
    with tefl.record() as calls:
        for _ in range(3):
            manager.call(op, x)
    assert calls == {(op, "reference.torch", "cpu"): 3}
    assert calls.fallbacks == {(op, "default.flagos", "reference.torch", "cpu"): 3}


def test_one_that_comes_before_the_failed_one_in_the_order_is_no_fallback(
    manager: OpManager, add, implementation, op: str, x: torch.Tensor
) -> None:
    add("default.flagos", supports=lambda x: len(x) > 1)
    add("vendor.acme", implementation(error=RuntimeError("boom")))
    add("reference.torch")
    with tefl.record() as calls:
        manager.call(op, x[:1])
        manager.call(op, x)
    assert calls == {(op, "reference.torch", "cpu"): 1, (op, "default.flagos", "cpu"): 1}
    assert calls.fallbacks == {(op, "vendor.acme", "reference.torch", "cpu"): 1}


def test_one_that_says_not_supported_is_no_fallback(
    manager: OpManager, add, implementation, op: str, x
) -> None:
    add("default.flagos", implementation(error=NotSupported("odd")))
    add("reference.torch")
    with tefl.record() as calls:
        manager.call(op, x)
    assert (calls, calls.fallbacks) == ({(op, "reference.torch", "cpu"): 1}, {})


def test_a_call_that_raises_is_not_counted(manager: OpManager, add, implementation, op: str, x) -> None:
    add("default.flagos", implementation(error=MemoryError()))
    with tefl.record() as calls, pytest.raises(MemoryError):
        manager.call(op, x)
    assert calls == {}


def test_records_nest_and_each_counts_for_itself(manager: OpManager, add, op: str, x) -> None:
    add("default.flagos")
    with tefl.record() as outer:
        manager.call(op, x)
        with tefl.record() as inner:
            manager.call(op, x)
    assert list(outer.values()) == [2]
    assert list(inner.values()) == [1]


def test_all_threads_are_counted(manager: OpManager, add, op: str, x) -> None:
    add("default.flagos")
    with tefl.record() as calls, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [manager.call(op, x) for _ in range(100)], range(4)))
    assert calls == {(op, "default.flagos", "cpu"): 400}


def test_torch_ops_are_counted_with_their_backward() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.ones(4, requires_grad=True)
    with tefl.record() as calls:
        torch.ops.tefl.rmsnorm_fwd(x, w)[0].sum().backward()
    assert calls == {
        ("rmsnorm_fwd", "reference.torch", "cpu"): 1,
        ("rmsnorm_bwd", "reference.torch", "cpu"): 1,
    }
