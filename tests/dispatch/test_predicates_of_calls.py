"""The dynamic question, asked at every call, and the answer "another one is faster"."""

from __future__ import annotations

import pytest
import torch

import tefl
from tefl import OpManager, Slower

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
