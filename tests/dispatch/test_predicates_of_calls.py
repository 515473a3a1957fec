"""The dynamic question, asked at every call, and the answer "another one is faster"."""

from __future__ import annotations

import pytest
import torch

import tefl
from tefl import OpManager, Slower
from tefl.dispatch import UndeclaredWrite

ANSWER = Slower("vendor.cuda", "8192x7168 bf16: recorded 4% faster")


def test_each_call_is_asked_anew(manager: OpManager, add, op: str) -> None:
    add("default.flagos", supports=lambda x: None if x.shape[0] % 2 == 0 else "rows must be even")
    add("reference.torch")
    used = [manager.call(op, torch.ones(rows)) for rows in (2, 3, 4, 5)]
    assert used == ["default.flagos", "reference.torch", "default.flagos", "reference.torch"]


def test_a_predicate_that_raises_passes_the_call_on_with_one_warning(
    manager: OpManager, add, op: str, x: torch.Tensor, warnings_in
) -> None:
    add("default.flagos", supports=lambda x: x.no_such_attribute)
    add("reference.torch")
    assert [manager.call(op, x), manager.call(op, x)] == ["reference.torch"] * 2
    (warning,) = warnings_in("default.flagos")
    assert "is passed over: supports() raised AttributeError" in warning


def test_a_static_predicate_that_raises_passes_it_over_with_one_warning(
    manager: OpManager, add, op: str, x: torch.Tensor, warnings_in
) -> None:
    def is_available() -> bool:
        raise OSError("no such library")

    add("vendor.acme", is_available=is_available)
    add("reference.torch")
    assert [manager.call(op, y) for y in (x, x.double())] == ["reference.torch"] * 2
    assert len(warnings_in("is_available() raised OSError: no such library")) == 1


def test_one_that_names_a_faster_one_gives_way_to_it(
    manager: OpManager, add, op: str, x: torch.Tensor
) -> None:
    add("default.flagos", supports=lambda x: ANSWER if x.numel() > 4 else None)
    add("vendor.cuda", vendor="nvidia")
    assert manager.call(op, x) == "vendor.cuda"
    assert manager.call(op, x[:1]) == "default.flagos"


def test_the_static_predicate_may_name_a_faster_one_too(manager: OpManager, add, op: str, x) -> None:
    add("default.flagos", is_available=lambda facts: ANSWER)
    cuda = add("vendor.cuda", vendor="nvidia", supports=lambda x: None if x.numel() > 4 else "too small")
    assert manager.call(op, x) == "vendor.cuda"
    assert manager.call(op, x[:1]) == "default.flagos"
    assert manager.resolve(op, x) is cuda


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {"is_available": lambda: "no driver"},
        {"supports": lambda x: "too small"},
        {"devices": "cuda"},
    ],
    ids=["not registered", "not available", "declines", "other device"],
)
def test_the_faster_one_is_not_taken_where_it_cannot_serve_the_call(
    manager: OpManager, add, op: str, x: torch.Tensor, fields: dict | None
) -> None:
    add("default.flagos", supports=lambda x: ANSWER)
    if fields is not None:
        add("vendor.cuda", vendor="nvidia", **fields)
    add("reference.torch")
    assert manager.call(op, x) == "default.flagos"


def test_the_faster_one_is_not_taken_where_the_policy_forbids_it(
    manager: OpManager, add, op: str, x: torch.Tensor
) -> None:
    add("default.flagos", supports=lambda x: ANSWER)
    add("vendor.cuda", vendor="nvidia")
    with tefl.with_denied_vendors("cuda"):
        assert manager.call(op, x) == "default.flagos"
    with tefl.with_strict_mode(), tefl.with_preference("flagos"):
        assert manager.call(op, x) == "default.flagos"


def test_the_faster_one_is_not_taken_after_it_has_failed(
    manager: OpManager, add, implementation, op: str, x: torch.Tensor
) -> None:
    add("default.flagos", supports=lambda x: ANSWER)
    add("vendor.cuda", implementation(error=RuntimeError("boom")), vendor="nvidia")
    assert [manager.call(op, x), manager.call(op, x)] == ["default.flagos"] * 2


def test_a_name_that_the_order_has_passed_already_is_not_taken(manager: OpManager, add, op: str, x) -> None:
    add("vendor.cuda", vendor="nvidia", supports=lambda x: "too small")
    add("default.flagos", supports=lambda x: ANSWER)
    with tefl.with_preference("vendor"):
        assert manager.call(op, x) == "default.flagos"


@pytest.mark.parametrize("kind", [MemoryError, RecursionError, torch.OutOfMemoryError])
@pytest.mark.parametrize("asked", ["supports", "is_available"])
def test_want_of_memory_or_stack_in_a_predicate_is_the_callers_and_not_remembered(
    manager: OpManager, add, op: str, x: torch.Tensor, kind: type[Exception], asked: str
) -> None:
    wants = [True]

    def predicate(*args: object) -> bool:
        if wants:
            raise kind("not now")
        return True

    add("vendor.acme", **{asked: predicate})
    add("reference.torch")
    with tefl.with_preference("vendor"):
        with pytest.raises(kind, match="not now"):
            manager.call(op, x)
        wants.clear()
        assert manager.call(op, x) == "vendor.acme"


def test_deep_calls_do_not_cost_an_implementation_its_place(manager: OpManager, add, op: str, x) -> None:
    def down(depth: int) -> object:
        return down(depth - 1) if depth else 1

    depths = [10**6, 10]
    add("vendor.acme", lambda x: down(depths.pop(0)) and "vendor.acme")
    add("reference.torch")
    with tefl.with_preference("vendor"):
        with pytest.raises(RecursionError):
            manager.call(op, x)
        assert manager.call(op, x) == "vendor.acme"


def test_a_predicate_that_writes_an_argument_is_an_error(manager: OpManager, add, declared) -> None:
    op = declared("(Tensor x) -> Tensor")
    add("vendor.acme", torch.clone, to=op, supports=lambda x: x.mul_(0) is None)
    add("reference.torch", torch.clone, to=op)
    with tefl.with_preference("vendor"):
        for _ in range(2):
            with pytest.raises(
                UndeclaredWrite, match=r"the predicate of 'vendor.acme' has written argument 'x'"
            ):
                manager.call(op, torch.ones(2))


def test_one_of_the_same_name_that_is_registered_later_is_warned_of_anew(
    manager: OpManager, registry, add, op: str, x: torch.Tensor, warnings_in
) -> None:
    add("reference.torch")
    for attribute in ("first", "second"):
        add("default.flagos", supports=lambda x, attribute=attribute: getattr(x, attribute))
        assert [manager.call(op, x), manager.call(op, x)] == ["reference.torch"] * 2
        registry.unregister("default.flagos")
    assert ["first" in line for line in warnings_in("default.flagos")] == [True, False]
