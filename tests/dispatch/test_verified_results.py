"""TEFL_CHECK=1: every result is compared with the fake function's promise and with the reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tefl
from tefl.dispatch import Deviation, declare
from tefl.dispatch.schema import parse
from tefl.dispatch.types import OpDecl
from tefl.dispatch.verify import Verified

rmsnorm = torch.ops.tefl.rmsnorm_fwd


@pytest.fixture
def plug(set_env: Callable[..., None]) -> Iterator[Callable[..., None]]:
    """Register the preferred implementation of rmsnorm_fwd, with checking on."""
    registry = tefl.get_registry()

    def plug(fn: Callable[..., Any], op: str = "rmsnorm_fwd") -> None:
        registry.register_impl(tefl.OpImpl(op, "vendor.odd", "vendor", fn, vendor="odd", priority=900))

    set_env(TEFL_CHECK="1", TE_FL_PREFER="vendor")
    yield plug
    registry.unregister("vendor.odd")


def right(input: Tensor, weight: Tensor, eps: float, **_: Any) -> tuple[Tensor, Tensor]:
    wide = input.double()
    rsigma = (wide.square().mean(-1) + eps).rsqrt()
    return (wide * rsigma.unsqueeze(-1) * weight.double()).to(input.dtype), rsigma.float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_results_that_differ_by_rounding_pass(plug, dtype: torch.dtype, rows: int) -> None:
    plug(right)
    x, weight = torch.randn(rows, 500).to(dtype), torch.randn(500).to(dtype)
    with tefl.record() as calls:
        for _ in range(2):
            rmsnorm(x, weight)
    assert [impl for _, impl, _ in calls] == ["vendor.odd"]


def test_a_value_that_is_off_is_reported_with_where_and_how_far(plug) -> None:
    calls = []

    def off_at_the_third_call(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        out, rsigma = right(*args, **kwargs)
        calls.append(1)
        if len(calls) == 3:
            out[1, 2] += 0.5
        return out, rsigma

    plug(off_at_the_third_call)
    x, weight = torch.randn(4, 8), torch.ones(8)
    rmsnorm(x, weight)
    rmsnorm(x, weight)
    with pytest.raises(Deviation) as caught:
        rmsnorm(x, weight)
    said = str(caught.value)
    assert "Op 'rmsnorm_fwd': implementation 'vendor.odd'" in said
    assert "result 0 differs from the reference: off by 0.5 at element 10" in said
    assert "1 of 32 elements" in said
    assert "float32 (4, 8), float32 (8,)" in said


@pytest.mark.parametrize(
    ("shape", "strides"), [((1, 8), (1, 1)), ((4, 1, 8), (8, 99, 1)), ((0, 8), (1, 5))], ids=str
)
def test_strides_that_lead_nowhere_are_not_compared(
    plug, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Those of dimensions of size one, and all of a tensor without elements."""

    def strided(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        out, rsigma = right(*args, **kwargs)
        return torch.empty_strided(shape, strides).copy_(out), rsigma

    plug(strided)
    for _ in range(2):
        rmsnorm(torch.randn(shape), torch.ones(8))
        rmsnorm(torch.empty_strided(shape, strides).fill_(2), torch.ones(8))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_off(plug, bad: float) -> None:
    plug(lambda *args, **kwargs: (right(*args, **kwargs)[0], right(*args, **kwargs)[1] * bad))
    with pytest.raises(Deviation, match=r"result 1 differs from the reference: off by (inf|nan)"):
        rmsnorm(torch.randn(4, 8), torch.ones(8))


def test_an_argument_that_was_written_by_its_address_is_found(plug) -> None:
    def writes(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        results = right(input, *args, **kwargs)
        input.numpy()[0, 1] *= 1 + 1e-6  # by less than what passes for rounding in a result
        return results

    plug(writes)
    with pytest.raises(Deviation, match=r"tensor argument 0 was written, which the schema does not say"):
        rmsnorm(torch.ones(2, 4), torch.ones(4))


def test_a_deviation_is_not_fallen_back_from_nor_remembered(plug) -> None:
    plug(lambda input, weight, eps, **_: (torch.zeros_like(input), input.new_ones(input.shape[:-1])))
    for _ in range(3):
        with pytest.raises(Deviation):
            rmsnorm(torch.randn(4, 8), torch.ones(8))


def test_a_backward_is_checked_too(plug) -> None:
    plug(
        lambda grad, input, rsigma, weight, **_: (torch.zeros_like(input), torch.zeros_like(weight)),
        "rmsnorm_bwd",
    )
    x = torch.randn(4, 8, requires_grad=True)
    with pytest.raises(Deviation, match=r"Op 'rmsnorm_bwd': implementation 'vendor\.odd'"):
        rmsnorm(x, torch.ones(8))[0].sum().backward()


def test_what_was_remembered_before_is_checked_once_it_is_switched_on(set_env) -> None:
    wrong = lambda input, weight, eps, **_: (input * 0, input.new_ones(input.shape[:-1]))  # noqa: E731
    tefl.get_registry().register_impl(tefl.OpImpl("rmsnorm_fwd", "vendor.odd", "vendor", wrong, vendor="odd"))
    try:
        x, weight = torch.randn(4, 8), torch.ones(8)
        set_env(TE_FL_PREFER="vendor")
        for _ in range(3):
            rmsnorm(x, weight)
        set_env(TEFL_CHECK="1")
        with pytest.raises(Deviation):
            rmsnorm(x, weight)
        set_env(TEFL_CHECK="0")
        rmsnorm(x, weight)
    finally:
        tefl.get_registry().unregister("vendor.odd")


class TestByTheManager:
    """Ops that only tests have, called through a manager of their own."""

    @pytest.fixture(autouse=True)
    def _checking(self, set_env: Callable[..., None]) -> None:
        set_env(TEFL_CHECK="1")

    @pytest.fixture
    def declared_as(self) -> Iterator[Callable[..., str]]:
        undo: list[Callable[[], None]] = []

        def declared_as(schema: str, fake: Callable[..., Any], reference: Callable[..., Any]) -> str:
            undo.append(declare(OpDecl("verified", "test", schema, fake, reference)))
            return "verified"

        yield declared_as
        undo[0]()

    def test_a_written_argument_is_compared(self, manager, add, declared_as) -> None:
        def twice(total: Tensor, part: Tensor) -> None:
            total.add_(part).add_(part)

        def once(total: Tensor, part: Tensor) -> None:
            total.add_(part)

        name = declared_as("(Tensor(a!) total, Tensor part) -> ()", lambda total, part: None, once)
        impl = add("vendor.odd", once, to=name)
        total = torch.zeros(2, 3)
        manager.call(name, total, torch.ones(2, 3))
        assert total.eq(1).all()
        manager.registry.unregister(impl.impl_id)
        add("vendor.odd", twice, to=name)
        with pytest.raises(Deviation, match="tensor argument 0 differs from the reference: off by 1 "):
            manager.call(name, total, torch.ones(2, 3))

    def test_integers_are_compared_exactly(self, manager, add, declared_as) -> None:
        name = declared_as("(Tensor x) -> Tensor", torch.empty_like, torch.clone)
        add("vendor.odd", lambda x: x + torch.tensor([0, 1, 0]), to=name)
        with pytest.raises(Deviation, match=re.escape("1 of 3 elements are unequal")):
            manager.call(name, torch.tensor([1, 2, 3]))


def test_a_fake_function_that_promises_something_else_is_found() -> None:
    decl = OpDecl(
        "verified", "test", "(Tensor x) -> Tensor", lambda x: x.new_empty(x.shape[::-1]), torch.clone
    )
    impl = tefl.OpImpl("verified", "reference.torch", "reference", torch.clone)
    checked = Verified(decl, parse(decl), torch.clone, impl)
    message = (
        "result 0 is float32 (2, 3), the fake function promises float32 (3, 2) (arguments: float32 (2, 3))"
    )
    with pytest.raises(Deviation, match=re.escape(message)):
        checked(torch.ones(2, 3))


def test_a_deviation_lists_all_tensors_that_were_given() -> None:
    """Keyword-only ones and those in lists too, whether a form or a value is off."""
    schema = "(Tensor x, Tensor[] more, *, Tensor scale) -> Tensor"
    x, more, scale = torch.ones(2, 3), [torch.ones(1), torch.ones(4, 5).t()], torch.ones(7)
    given = "(arguments: float32 (2, 3), float32 (1,), float32 (5, 4) strides (1, 5), float32 (7,))"

    def same(x: Tensor, more: list[Tensor], *, scale: Tensor) -> Tensor:
        return x.clone()

    decl = OpDecl("verified", "test", schema, lambda x, more, *, scale: torch.empty_like(x), same)
    wrong_form = lambda x, more, *, scale: x.t().contiguous().t()  # noqa: E731
    wrong_value = lambda x, more, *, scale: x + 1  # noqa: E731
    for wrong, says in (
        (wrong_form, "strides (1, 2), the fake"),
        (wrong_value, "differs from the reference"),
    ):
        impl = tefl.OpImpl("verified", "vendor.odd", "vendor", wrong, vendor="odd")
        with pytest.raises(Deviation, match=re.escape(says)) as caught:
            Verified(decl, parse(decl), wrong, impl)(x, more, scale=scale)
        assert str(caught.value).endswith(given)


def test_a_value_that_cannot_be_read_is_an_error_at_first_use(fresh_python) -> None:
    done = fresh_python(
        """
        import torch, tefl
        try:
            torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4))
        except ValueError as error:
            print(error)
        """,
        TEFL_CHECK="maybe",
    )
    assert "TEFL_CHECK='maybe'" in done.stdout


@pytest.mark.parametrize("other", [torch.zeros(7), torch.zeros(3, 8).double()], ids=["shape", "dtype"])
def test_an_argument_whose_data_was_replaced_is_found(manager, add, declared, set_env, other) -> None:
    set_env(TEFL_CHECK="1")
    op = declared("(Tensor x) -> Tensor")

    def replacing(x: torch.Tensor) -> torch.Tensor:
        result = x.clone()
        x.data = other
        return result

    add("vendor.acme", replacing, to=op)
    with pytest.raises(Deviation, match="tensor argument 0 was written, which the schema does not say"):
        manager.call(op, torch.ones(3, 8))


def test_that_results_are_compared_is_said_once(manager, add, declared, set_env, warnings_in) -> None:
    op = declared("(Tensor x) -> Tensor")
    add("reference.torch", torch.clone, to=op)
    manager.call(op, torch.ones(2))
    assert not manager.explain(op, torch.ones(2)).verified
    assert not warnings_in("TEFL_CHECK")
    set_env(TEFL_CHECK="1")
    for dtype in (torch.float32, torch.float64):
        manager.call(op, torch.ones(2, dtype=dtype))
    (warning,) = warnings_in("TEFL_CHECK")
    assert warning.endswith("TEFL_CHECK=1: every result is compared with the fake function's promise and "
                            "with the reference, which takes its time")  # fmt: skip
    assert "TEFL_CHECK=1: every result is compared" in str(manager.explain(op, torch.ones(2)))
