"""An implementation that writes an argument which its op leaves alone is an error; none other runs then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_op import Op, scaled
from torch import Tensor

import tefl
from tefl.dispatch import UndeclaredWrite
from tefl.dispatch.native import is_attached

pytestmark = pytest.mark.skipif(not is_attached(), reason="tests the compiled router, which was not built")

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda x: x.add_(1),
    "out=": lambda x: torch.add(x, 1, out=x),
    "part of it": lambda x: x[:1].fill_(0),
    "through a view": lambda x: x.view(-1)[0].zero_(),
    "through detach": lambda x: x.detach().mul_(2),
    "by a foreach": lambda x: torch._foreach_add_([x], 1),
    "by index": lambda x: x.__setitem__(0, 5.0),
}


def writing(write: Callable[[Tensor], Any], after: int = 0) -> Callable[..., Any]:
    """The definition, that from its nth call on writes its input as well."""
    calls = []

    def implementation(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        result = scaled(input, *args, **kwargs)
        if len(calls) > after:
            write(input)
        return result

    return implementation


@pytest.fixture
def x() -> Tensor:
    return torch.arange(1.0, 7.0).view(2, 3)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("after", [0, 3], ids=["at once", "later"])
def test_a_write_is_told_with_op_implementation_and_argument(
    native: Op, x: Tensor, write: Callable[[Tensor], Any], after: int
) -> None:
    native.add("vendor.acme", writing(write, after))
    native.add("reference.torch", scaled)
    for _ in range(after):
        assert native.call(x)[0].sum() == 42
    for _ in range(2):
        with pytest.raises(UndeclaredWrite) as caught:
            native.call(x)
        message = f"Op {native.name!r}: implementation 'vendor.acme' has written argument 'input'"
        assert str(caught.value).startswith(message)
    with tefl.record() as calls, tefl.with_denied_vendors("acme"):
        native.call(x)
    assert calls == {(native.name, "reference.torch", "cpu"): 1}


def test_an_argument_that_requires_grad_is_no_different(native: Op, x: Tensor) -> None:
    native.add("vendor.acme", writing(lambda x: x.view(6).add_(1), after=2))
    leaf = x.clone().requires_grad_()
    for argument in (leaf, leaf, leaf * 1):
        if argument is leaf:
            native.call(argument)
            continue
        with pytest.raises(UndeclaredWrite, match="argument 'input'"):
            native.call(argument)


@pytest.mark.parametrize("after", [0, 2])
def test_one_that_raises_after_it_has_written_is_not_fallen_back_from(
    native: Op, x: Tensor, after: int
) -> None:
    def fail(x: Tensor) -> None:
        x.zero_()
        raise ZeroDivisionError("boom")

    native.add("vendor.acme", writing(fail, after))
    native.add("reference.torch", scaled)
    for _ in range(after):
        native.call(x)
    with pytest.raises(UndeclaredWrite, match=r"vendor\.acme") as caught:
        native.call(x)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("after", [0, 2])
def test_an_interrupt_stays_one(native: Op, x: Tensor, after: int) -> None:
    def interrupt(x: Tensor) -> None:
        x.zero_()
        raise KeyboardInterrupt

    native.add("vendor.acme", writing(interrupt, after))
    for _ in range(after):
        native.call(x)
    with pytest.raises(KeyboardInterrupt):
        native.call(x)


def test_a_call_of_the_manager_is_watched_as_well(native: Op, x: Tensor) -> None:
    native.add("vendor.acme", writing(lambda x: x.add_(1)))
    with pytest.raises(UndeclaredWrite, match="argument 'input'"):
        tefl.get_manager().call(native.name, x)


@pytest.mark.parametrize("calls", [0, 3], ids=["at once", "later"])
def test_what_the_schema_declares_as_written_may_be_and_nothing_else(calls: int, register_op) -> None:
    limit = 2.0 * calls

    def add(total: Tensor, parts: list[Tensor]) -> None:
        for part in parts:
            total += part
        if total[0] > limit:
            parts[1].zero_()

    schema = "(Tensor(a!) total, Tensor[] parts) -> ()"
    op, total = register_op(schema, lambda total, parts: None, add), torch.zeros(3)
    for _ in range(calls):
        op(total, [torch.ones(3), torch.ones(3)])
    assert total.tolist() == [limit] * 3
    with pytest.raises(UndeclaredWrite, match="argument 'parts'"):
        op(total, [torch.ones(3), torch.ones(3)])


SHARING: dict[str, Callable[[], tuple[Tensor, Tensor, Tensor]]] = {
    "slices": lambda: ((flat := torch.zeros(8)), flat[:4], flat[4:]),
    "a chunk and what it is of": lambda: ((flat := torch.zeros(8)), flat.chunk(2)[0], flat.detach()[4:]),
    "the same": lambda: ((flat := torch.zeros(4)), flat, flat),
}


@pytest.mark.parametrize("sharing", SHARING.values(), ids=SHARING)
def test_what_shares_memory_with_a_written_argument_is_not_taken_for_written(
    sharing: Callable[[], tuple[Tensor, Tensor, Tensor]], register_op
) -> None:
    """Slices of one flat buffer have one count of writes; an argument beside them is watched as ever."""
    also = []

    def add(totals: list[Tensor], parts: list[Tensor], other: Tensor) -> None:
        for total, part in zip(totals, parts, strict=True):
            total += part + 1
        for write in also:
            write(other)

    schema = "(Tensor(a!)[] totals, Tensor[] parts, Tensor other) -> ()"
    op = register_op(schema, lambda *args: None, add)
    for call in (*[op] * 3, lambda *args: tefl.get_manager().call(op.__name__, *args)):
        _, total, part = sharing()
        call([total], [part], torch.ones(1))
        assert total.tolist() == [1.0] * 4
        also[:] = [lambda other: other.zero_()]
        with pytest.raises(UndeclaredWrite, match=r"argument 'other'.*another thread"):
            call([total], [part], torch.ones(1))
        also.clear()


def test_inference_tensors_are_not_watched(native: Op, x: Tensor) -> None:
    """They carry no count of writes."""
    native.add("vendor.acme", scaled)
    with torch.inference_mode():
        frozen = x.clone()
        for _ in range(3):
            assert native.call(frozen)[0].sum() == 42


def test_a_result_that_is_a_view_of_its_own_memory_has_a_history_of_its_own(register_op) -> None:
    """Changing it in place must not cut it off from the op that made it."""

    def double(x: Tensor) -> Tensor:
        return (x * 2).reshape(-1).view(x.shape)

    derivative = register_op("(Tensor grad) -> Tensor", torch.empty_like, double)
    backward = tefl.dispatch.Backward(derivative.__name__, (("grad", 0),), {"x": 0})
    op = register_op("(Tensor x) -> Tensor", torch.empty_like, double, backward=backward)
    for _ in range(4):
        leaf = torch.ones(2, 3, requires_grad=True)
        out = op(leaf)
        assert not out._is_view()
        out *= 3
        out.sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [[6.0] * 3] * 2
