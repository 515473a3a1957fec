"""Calls that are served like an earlier one: what is asked once, what at every call, and what drops it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_op import Op, numbers, scaled
from torch import Tensor

import tefl
from tefl.dispatch import OpDecl
from tefl.dispatch.native import is_attached

pytestmark = pytest.mark.skipif(not is_attached(), reason="tests the compiled router, which was not built")


@pytest.fixture
def x() -> Tensor:
    return torch.arange(6.0).view(2, 3)


# --- what is asked once ---


def test_a_call_like_an_earlier_one_is_not_checked_again(native: Op, x: Tensor) -> None:
    native.add("reference.torch", scaled)
    for _ in range(5):
        out, total = native.call(x)
    assert native.checks == 1
    torch.testing.assert_close((out, total), (x * 2, (x * 2).sum(-1)))


@pytest.mark.parametrize(
    "other",
    [
        lambda call, x: call(torch.ones(3, 3)),
        lambda call, x: call(x.double()),
        lambda call, x: call(x.t()),
        lambda call, x: call(x[None]),
        lambda call, x: call(x, torch.ones(3)),
        lambda call, x: call(x, None, 3.0),
        lambda call, x: call(x, out_dtype=torch.float64),
    ],
    ids=["sizes", "dtype", "strides", "dimensions", "presence", "scalar", "option"],
)
def test_one_that_differs_in_anything_is_checked(native: Op, x: Tensor, other: Callable[..., Any]) -> None:
    native.add("reference.torch", scaled)
    native.call(x)
    for _ in range(3):
        other(native.call, x)
    assert native.checks == 2


def test_one_that_the_check_refuses_is_refused_every_time(native: Op, x: Tensor) -> None:
    native.add("reference.torch", scaled)
    for _ in range(3):
        native.call(x)
        with pytest.raises(ValueError, match=r"scale is -1\.0"):
            native.call(x, None, -1.0)
        with pytest.raises(ValueError, match=r"shape \(2, 13\)"):
            native.call(torch.ones(2, 13))
    assert native.checks == 1 + 2 * 3


def test_as_many_forms_as_there_are_are_served_rightly(native: Op) -> None:
    native.add("reference.torch", scaled)
    for _ in range(3):
        for rows in range(200):
            out, total = native.call(torch.full((rows, 2), float(rows)))
            assert out.shape == (rows, 2)
            assert total.tolist() == [4.0 * rows] * rows
    assert native.checks <= 3 * 200


def test_the_check_is_not_asked_again_where_python_decides_each_call(native: Op, x: Tensor) -> None:
    native.add("default.flagos", scaled, supports=lambda *args, **kwargs: "never")
    native.add("reference.torch", scaled)
    for _ in range(5):
        native.call(x)
    with tefl.record() as calls:
        native.call(x)
    assert calls == {(native.name, "reference.torch", "cpu"): 1}
    assert native.checks == 1


def test_a_call_with_an_argument_that_cannot_be_compared_is_checked_each_time(x: Tensor, register_op) -> None:
    seen, fake = [], lambda x, by: torch.empty_like(x)
    op = register_op("(Tensor x, Scalar by) -> Tensor", fake, torch.mul, check=lambda x, by: seen.append(by))
    results = [op(x.to(torch.complex64), by) for by in (1j, 1j, 2.0, 2.0)]
    assert seen == [1j, 1j, 2.0]
    torch.testing.assert_close(results[1], x * 1j)


# --- what is asked at every call ---


def test_a_predicate_is_asked_at_every_call(native: Op, x: Tensor) -> None:
    asked = []

    def is_even(input: Tensor, *args: Any, **kwargs: Any) -> str | None:
        asked.append(kwargs)
        return None if int(input.sum()) % 2 == 0 else "odd"

    native.add("default.flagos", lambda *a, **k: (torch.zeros(2, 3), torch.zeros(2)), supports=is_even)
    native.add("reference.torch", scaled)
    even, odd = torch.zeros(2, 3), torch.eye(2, 3) * torch.tensor([[1.0], [0.0]])
    for _ in range(3):
        assert native.call(even)[0].sum() == 0
        assert native.call(odd)[0].sum() == 2
    assert len(asked) >= 6
    assert asked[-1] == {"out_dtype": None}
    assert native.checks == 1


def test_a_predicate_that_starts_to_raise_is_reported_and_passed_over(
    native: Op, x: Tensor, warnings_in: Callable[[str], list[str]]
) -> None:
    answers: list[Any] = [None, None]

    def supports(*args: Any, **kwargs: Any) -> Any:
        return answers.pop()

    native.add("default.flagos", lambda *a, **k: (torch.zeros(2, 3), torch.zeros(2)), supports=supports)
    native.add("reference.torch", scaled)
    assert [float(native.call(x)[0].sum()) for _ in range(4)] == [0.0, 0.0, 30.0, 30.0]
    assert len(warnings_in("supports() raised IndexError")) == 1


def test_one_that_names_a_faster_one_gives_way(native: Op, x: Tensor) -> None:
    answer: list[Any] = [None]
    native.add("default.flagos", scaled, supports=lambda *a, **k: answer[0])
    native.add("vendor.cuda", scaled)
    with tefl.record() as calls:
        native.call(x)
    for _ in range(3):
        native.call(x)
    answer[0] = tefl.Slower("vendor.cuda", "measured")
    native.call(x)
    with tefl.record() as later:
        native.call(x)
    assert [*calls, *later] == [(native.name, "default.flagos", "cpu"), (native.name, "vendor.cuda", "cpu")]


def test_calls_are_counted_from_the_moment_that_somebody_counts(native: Op, x: Tensor) -> None:
    native.add("reference.torch", scaled)
    native.call(x)
    native.call(x)
    with tefl.record() as calls:
        for _ in range(3):
            native.call(x)
    native.call(x)
    assert calls == {(native.name, "reference.torch", "cpu"): 3}
    assert native.checks == 1


# --- what drops what is remembered ---


def answering(number: float) -> Callable[..., Any]:
    return lambda input, *args, **kwargs: (torch.full_like(input, number), torch.zeros(input.shape[:-1]))


def answer(native: Op, x: Tensor) -> float:
    return float(native.call(x)[0].flatten()[0])


def test_what_is_registered_and_removed_applies_from_the_next_call_on(native: Op, x: Tensor) -> None:
    native.add("default.one", answering(1))
    assert [answer(native, x) for _ in range(2)] == [1, 1]
    native.add("default.two", answering(2), priority=5)
    assert [answer(native, x) for _ in range(2)] == [2, 2]
    tefl.get_registry().unregister("default.two")
    assert [answer(native, x) for _ in range(2)] == [1, 1]


def test_a_new_policy_of_the_process_applies_from_the_next_call_on(native: Op, x: Tensor) -> None:
    native.add("vendor.acme", answering(1))
    native.add("reference.torch", answering(2))
    assert [answer(native, x) for _ in range(2)] == [1, 1]
    tefl.set_global_policy(tefl.SelectionPolicy(deny_vendors=["acme"]))
    assert [answer(native, x) for _ in range(2)] == [2, 2]
    tefl.reset_global_policy()
    assert answer(native, x) == 1


def test_contexts_choose_and_what_each_has_chosen_is_kept(native: Op, x: Tensor) -> None:
    native.add("vendor.acme", answering(1))
    native.add("reference.torch", answering(2))
    for _ in range(3):
        assert answer(native, x) == 1
        with tefl.with_preference("reference"):
            assert answer(native, x) == 2
            with tefl.with_preference("vendor"):
                assert answer(native, x) == 1
            assert answer(native, x) == 2
    assert native.checks == 3  # one for each policy


def test_a_context_of_another_thread_changes_nothing_here(native: Op, x: Tensor) -> None:
    from concurrent.futures import ThreadPoolExecutor

    native.add("vendor.acme", answering(1))
    native.add("reference.torch", answering(2))
    with tefl.with_preference("reference"), ThreadPoolExecutor(1) as other:
        assert other.submit(answer, native, x).result() == 1
        assert answer(native, x) == 2


# --- what implementations do ---


def test_an_implementation_that_starts_to_fail_is_fallen_back_from_once(
    native: Op, x: Tensor, warnings_in: Callable[[str], list[str]]
) -> None:
    calls = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("boom")
        return scaled(*args, **kwargs)

    native.add("vendor.acme", failing)
    native.add("reference.torch", answering(7))
    assert [answer(native, x[1:]) for _ in range(6)] == [6, 6, 6, 7, 7, 7]
    assert len(calls) == 4
    (warning,) = warnings_in("boom")
    assert f"Op {native.name!r}: 'vendor.acme' failed on cpu (float32)" in warning


def test_one_that_does_not_support_a_call_is_tried_again(native: Op, x: Tensor) -> None:
    answers = [True, False, True]

    def picky(*args: Any, **kwargs: Any) -> Any:
        if not answers.pop(0):
            raise tefl.NotSupported("not today")
        return answering(1)(*args, **kwargs)

    native.add("vendor.acme", picky)
    native.add("reference.torch", answering(2))
    assert [answer(native, x) for _ in range(3)] == [1, 2, 1]


@pytest.mark.parametrize("error", [ZeroDivisionError("really"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_an_error_that_is_the_callers_keeps_its_type(native: Op, x: Tensor, error: BaseException) -> None:
    armed = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        if armed:
            raise error
        return answering(1)(*args, **kwargs)

    native.add("vendor.acme", failing)
    native.add("reference.torch", answering(2))
    with tefl.with_strict_mode():
        assert [answer(native, x) for _ in range(2)] == [1, 1]
        armed.append(1)
        with pytest.raises(type(error)) as caught:
            native.call(x)
        assert caught.value is error
        armed.clear()
        assert answer(native, x) == 1


def test_an_implementation_may_call_its_own_op(native: Op, x: Tensor) -> None:
    def recursive(input: Tensor, bias: Any, scale: float, **options: Any) -> Any:
        if len(input) > 1:
            halves = [native.call(part, bias, scale)[0] for part in input.split(len(input) // 2)]
            return torch.cat(halves), torch.cat(halves).sum(-1)
        return scaled(input, bias, scale, **options)

    native.add("vendor.acme", recursive)
    big = torch.arange(64.0).view(32, 2)
    for _ in range(3):
        torch.testing.assert_close(native.call(big)[0], big * 2)


def test_an_op_that_writes_an_argument_is_noticed_by_graphs_that_saved_it() -> None:
    name = f"test_native_{next(numbers)}"
    tefl.ops.register(
        OpDecl(name, "test", "(Tensor(a!) total, Tensor part) -> ()", lambda total, part: None, Tensor.add_)
    )

    def add(total: Tensor, part: Tensor) -> None:
        total += part

    tefl.get_registry().register_impl(tefl.OpImpl(name, "reference.torch", "reference", add))
    write, total = getattr(torch.ops.tefl, name), torch.ones(3)
    leaf = torch.ones(3, requires_grad=True)
    loss = (leaf * total).sum()
    for _ in range(2):
        assert write(total, torch.ones(3)) is None
    assert total.tolist() == [3.0] * 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(RuntimeError, match="argument total requires grad, and the op writes it"):
        write(leaf, torch.ones(3))
    with torch.no_grad():
        write(leaf, torch.ones(3))
    assert leaf.tolist() == [2.0] * 3
    tefl.get_registry().unregister("reference.torch", name)


# --- implementations in native code ---

Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class NativeKernel(ctypes.Structure):
    """csrc/dispatch/native_kernel.h"""

    _fields_ = [("function", Function), ("state", ctypes.c_void_p)]


def test_a_native_kernel_is_called_with_the_stack_and_its_state(x: Tensor, register_op) -> None:
    """One that leaves the stack as it is: the argument is the result."""
    states, in_python = [], []
    kernel = NativeKernel(Function(lambda state, op, stack: states.append(state)), 42)
    capsule_of = ctypes.pythonapi.PyCapsule_New
    capsule_of.restype, capsule_of.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    capsule = capsule_of(ctypes.addressof(kernel), b"tefl.native_kernel", None)

    def implementation(x: Tensor) -> Tensor:
        in_python.append(x)
        return x

    implementation.native_kernel = lambda promise, args, kwargs: capsule  # type: ignore[attr-defined]
    op = register_op("(Tensor x) -> Tensor", torch.empty_like, implementation, "default.flagos")
    assert op(x) is not x  # Python's first call of a form, whose result got memory of its own
    for _ in range(3):
        assert op(x) is x
    assert (len(in_python), states) == (1, [42] * 3)
