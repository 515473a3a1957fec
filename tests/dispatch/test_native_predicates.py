"""Predicates whose answer follows from the form of a call are asked once for calls that look alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from native_op import Op, scaled
from torch import Tensor

import tefl
from tefl.dispatch.native import is_attached

pytestmark = pytest.mark.skipif(not is_attached(), reason="tests the compiled router, which was not built")


@pytest.fixture
def x() -> Tensor:
    return torch.arange(6.0).view(2, 3)


def test_a_predicate_that_follows_from_the_form_is_asked_once(native: Op, x: Tensor) -> None:
    """And whichever implementation serves such calls is served natively, the first or a later one."""
    asked = []

    @tefl.of_form
    def wide_enough(input: Tensor, *args: Any, **kwargs: Any) -> str | None:
        asked.append(tuple(input.shape))
        return None if input.shape[-1] > 2 else "too narrow"

    native.add("default.flagos", scaled, supports=wide_enough)
    native.add("reference.torch", lambda *args, **options: (torch.zeros(2, 2), torch.zeros(2)))
    for _ in range(5):
        assert native.call(x)[0].sum() == 30
        assert native.call(torch.ones(2, 2))[0].sum() == 0
    assert native.checks == 2
    calls = len(asked)
    assert {(2, 3), (2, 2)} == set(asked)
    for _ in range(5):
        native.call(x)
        native.call(torch.ones(2, 2))
    assert len(asked) == calls
    native.call(torch.ones(4, 3))
    assert asked[-1] == (4, 3)


def test_one_that_names_a_faster_one_by_the_form_gives_way_natively(native: Op, x: Tensor) -> None:
    asked = []

    @tefl.of_form
    def slower(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        asked.append(1)
        return tefl.Slower("vendor.acme", "two rows") if len(input) == 2 else None

    native.add("default.flagos", scaled, supports=slower)
    native.add("vendor.acme", lambda *args, **options: (torch.zeros(2, 3), torch.zeros(2)))
    for _ in range(6):
        assert native.call(x)[0].sum() == 0
        assert native.call(torch.ones(1, 3))[0].sum() == 6
    assert len(asked) <= 6  # when Python served the two first calls, not at each of twelve
    assert native.checks == 2
    with tefl.with_denied_vendors("acme"):
        for _ in range(3):
            assert native.call(x)[0].sum() == 30


def test_an_interrupt_in_a_predicate_stays_one_and_an_error_is_a_no(native: Op, x: Tensor) -> None:
    raised: list[BaseException] = []

    def predicate(*args: Any, **kwargs: Any) -> bool:
        if raised:
            raise raised.pop()
        return True

    native.add("vendor.acme", scaled, supports=predicate)
    native.add("reference.torch", lambda *args, **options: (torch.zeros(2, 3), torch.zeros(2)))
    with tefl.with_preference("vendor"):
        for _ in range(3):
            assert native.call(x)[0].sum() == 30
        for error in (KeyboardInterrupt(), SystemExit(3)):
            raised[:] = [error]
            with pytest.raises(type(error)):
                native.call(x)
        raised[:] = [OSError("first"), OSError("second")]  # the router asks, and then Python does
        assert native.call(x)[0].sum() == 0
        assert native.call(x)[0].sum() == 30
