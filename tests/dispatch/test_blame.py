"""An exception of an implementation says, beside its own type and text, which one of which op it was."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from native_op import Op, scaled

import tefl
from tefl.dispatch.blame import name_implementation
from tefl.dispatch.native import is_attached


class Ours(Exception):
    pass


def failing(error: BaseException, after: int = 0) -> Any:
    """The definition, that raises from its so manieth call on."""
    calls = []

    def implementation(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > after:
            raise error
        return scaled(*args, **kwargs)

    return implementation


@pytest.fixture(params=[False, True], ids=["not strict", "strict"])
def strict(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_an_error_names_op_and_implementation_once(manager, add, op: str, strict: bool) -> None:
    error = Ours("mine")
    add("vendor.acme", failing(error))
    with tefl.policy_context(tefl.SelectionPolicy(strict=strict)):
        for _ in range(3):
            with pytest.raises(Ours) as caught:
                manager.call(op)
    assert caught.value is error
    assert (str(error), error.__notes__) == ("mine", [f"tefl: while {op} ran vendor.acme"])


@pytest.mark.skipif(not is_attached(), reason="tests the compiled router, which was not built")
@pytest.mark.parametrize("after", [0, 3], ids=["at once", "from the router"])
def test_one_that_the_router_has_called_is_named_too(native: Op, strict: bool, after: int) -> None:
    error = Ours("mine")
    native.add("vendor.acme", failing(error, after))
    with tefl.policy_context(tefl.SelectionPolicy(strict=strict)):
        for _ in range(after):
            native.call(torch.ones(2, 3))
        for _ in range(2):
            with pytest.raises(Ours) as caught:
                native.call(torch.ones(2, 3))
    assert caught.value is error
    assert error.__notes__ == [f"tefl: while {native.name} ran vendor.acme"]


def test_a_want_of_memory_is_named(manager, add, op: str) -> None:
    add("vendor.acme", failing(MemoryError()))
    add("reference.torch")
    with tefl.with_preference("vendor"), pytest.raises(MemoryError) as caught:
        manager.call(op)
    assert caught.value.__notes__ == [f"tefl: while {op} ran vendor.acme"]


def test_where_all_fail_each_error_has_its_own_name(manager, add, op: str) -> None:
    first, last = Ours("first"), Ours("last")
    add("default.flagos", failing(first))
    add("reference.torch", failing(last))
    with pytest.raises(Ours):
        manager.call(op)
    assert last.__cause__ is first
    assert [error.__notes__ for error in (first, last)] == [
        [f"tefl: while {op} ran default.flagos"],
        [f"tefl: while {op} ran reference.torch"],
    ]


def test_an_error_that_is_fallen_back_from_stays_as_it_is(manager, add, op: str) -> None:
    error = Ours("mine")
    add("vendor.acme", failing(error))
    add("reference.torch")
    with tefl.with_preference("vendor"):
        assert manager.call(op) == "reference.torch"
    assert not hasattr(error, "__notes__")


class WithoutNotes(Exception):
    """An exception as Python 3.10 has it."""

    @property
    def add_note(self) -> Any:
        raise AttributeError


@pytest.mark.parametrize("kind", [Ours, WithoutNotes])
def test_the_note_is_logged_where_python_does_not_print_it(logged, kind: type[Exception]) -> None:
    error = kind("mine")
    for _ in range(2):
        name_implementation(error, "some_op", "vendor.acme")
    lines = [record.getMessage() for record in logged]
    prints = kind is Ours and sys.version_info >= (3, 11)
    assert lines == ([] if prints else [f"tefl: while some_op ran vendor.acme: {kind.__name__}"])
