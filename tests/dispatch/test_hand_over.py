"""Handing an implementation by recipe to native code: after the call is served, so never at its expense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_op import Op, scaled
from torch import Tensor

import tefl
from tefl.dispatch.native import is_attached
from tefl.kernels.recipe import Buffer, Recipe, by_recipe, dense

pytestmark = pytest.mark.skipif(not is_attached(), reason="tests the compiled router, which was not built")


def recipe(input: Tensor, source: Tensor | None = None) -> Recipe:
    """A copy of the source, by default of the input, and zeros."""
    copy = Buffer(tuple(input.shape), input.dtype, source=input if source is None else source)
    return Recipe(input.device, [], (copy, Buffer(tuple(input.shape[:-1]), torch.float32, zero=True)))


def counting(write: Callable[[int, Tensor], Recipe]) -> tuple[Any, list[int]]:
    """An implementation by recipe, and a list with an element for each recipe; ``write`` gets its number."""
    written: list[int] = []

    @by_recipe
    def implementation(input: Tensor, *args: Any, **kwargs: Any) -> Recipe:
        written.append(len(written))
        return write(len(written), input)

    return implementation, written


def served(op: Op, x: Tensor, calls: int) -> None:
    for _ in range(calls):
        out, zeros = op.call(x)
        assert torch.equal(out, x)
        assert not zeros.any()


@pytest.fixture
def x() -> Tensor:
    return torch.arange(6.0).view(2, 3)


def test_what_is_handed_over_is_written_once_for_the_call_and_once_for_native_code(
    native: Op, x: Tensor
) -> None:
    implementation, written = counting(lambda _, input: recipe(input))
    native.add("vendor.acme", implementation)
    served(native, x, 4)
    assert len(written) == 2


def test_one_that_raises_only_then_is_reported_once_and_python_goes_on(
    native: Op, x: Tensor, warnings_in: Callable[[str], list[str]]
) -> None:
    def write(number: int, input: Tensor) -> Recipe:
        if number in (2, 6):
            raise ZeroDivisionError("only now")
        return recipe(input)

    implementation, written = counting(write)
    native.add("vendor.acme", implementation)
    served(native, x, 3)
    assert len(written) == 4
    served(native, x.double(), 2)  # the sixth is the hand-over of this form
    (warning,) = warnings_in("only now")
    assert f"Op {native.name!r}: 'vendor.acme' could not be handed to native code" in warning
    assert "ZeroDivisionError" in warning


def test_one_that_declines_only_then_is_not_even_reported(
    native: Op, x: Tensor, warnings_in: Callable[[str], list[str]]
) -> None:
    def write(number: int, input: Tensor) -> Recipe:
        if number == 2:
            raise tefl.NotSupported("not in native code")
        return recipe(input)

    native.add("vendor.acme", counting(write)[0])
    served(native, x, 3)
    assert warnings_in("") == []


def test_one_that_declines_such_calls_leaves_them_to_the_next(
    native: Op, x: Tensor, warnings_in: Callable[[str], list[str]]
) -> None:
    def write(number: int, input: Tensor) -> Recipe:
        raise tefl.NotSupported("columns must be a multiple of 4")

    native.add("vendor.acme", counting(write)[0], priority=900)
    native.add("reference.torch", scaled)
    with tefl.with_preference("vendor"):
        for _ in range(3):
            assert torch.equal(native.call(x)[0], x * 2)
    assert warnings_in("") == []


def test_a_copy_of_a_tensor_that_is_no_argument_is_made_in_python(
    native: Op, x: Tensor, warnings_in: Callable[[str], list[str]]
) -> None:
    def write(number: int, input: Tensor) -> Recipe:
        turned = dense(input.t().contiguous().t())  # same values, and another tensor
        assert isinstance(turned, Buffer)
        return Recipe(input.device, [], (turned, recipe(input).results[1]))

    implementation, written = counting(write)
    native.add("vendor.acme", implementation)
    served(native, x, 3)
    assert len(written) == 4
    served(native, x + 1, 1)
    assert warnings_in("") == []


def test_one_buffer_is_not_two_results_that_share_memory(register_op: Callable[..., Any]) -> None:
    @by_recipe
    def twice(x: Tensor) -> Recipe:
        copy = Buffer(tuple(x.shape), x.dtype, source=x)
        return Recipe(x.device, [], (copy, copy))

    fake = lambda x: (torch.empty_like(x), torch.empty_like(x))  # noqa: E731
    op = register_op("(Tensor x) -> (Tensor, Tensor)", fake, twice)
    for _ in range(3):
        first, second = op(torch.ones(3))
        first.zero_()
        assert second.tolist() == [1.0] * 3
