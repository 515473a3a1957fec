"""What happens when an implementation raises: who runs instead, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tefl
from tefl import NotSupported, OpManager
from tefl.dispatch import DispatchError

BOOM = RuntimeError("boom")


def test_the_next_runs_and_one_warning_names_both_and_the_reason(
    manager: OpManager, add, implementation, op: str, x: torch.Tensor, warnings_in
) -> None:
    add("default.flagos", implementation(error=BOOM))
    add("reference.torch", implementation("answer"))
    assert [manager.call(op, x) for _ in range(3)] == ["answer"] * 3
    (warning,) = warnings_in("boom")
    assert f"Op {op!r}: 'default.flagos' failed on cpu (float32) (RuntimeError: boom)" in warning
    assert "'reference.torch' ran instead" in warning


def test_a_failing_implementation_is_not_tried_again_for_that_device_and_dtype(
    manager: OpManager, add, implementation, op: str, x: torch.Tensor
) -> None:
    failing = implementation(error=BOOM)
    add("default.flagos", failing)
    add("reference.torch")
    for _ in range(5):
        manager.call(op, x)
    assert failing.calls == 1
    manager.call(op, x.double())
    manager.call(op, x.double())
    assert failing.calls == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda registry: tefl.set_global_policy(tefl.SelectionPolicy(deny_vendors=["nobody"])),
        lambda registry: tefl.reset_global_policy(),
        lambda registry: registry.register_impl(tefl.OpImpl("other", "default.x", "flagos", print)),
    ],
    ids=["policy set", "policy reset", "registry changed"],
)
def test_a_changed_policy_or_registry_gives_it_another_try(
    manager: OpManager, registry, add, implementation, op: str, x: torch.Tensor, change: Callable
) -> None:
    failing = implementation(error=BOOM)
    add("default.flagos", failing)
    add("reference.torch")
    manager.call(op, x)
    change(registry)
    failing.error = None
    assert [manager.call(op, x), manager.call(op, x)] == ["answer", "answer"]
    assert failing.calls == 3


def test_several_may_fail_before_one_runs(
    manager: OpManager, add, implementation, op, x, warnings_in
) -> None:
    add("default.flagos", implementation(error=BOOM), priority=2)
    add("default.flaggems", implementation(error=ValueError("bang")), priority=1)
    add("reference.torch")
    assert manager.call(op, x) == "reference.torch"
    assert len(warnings_in("ran instead")) == 2


def test_one_that_has_run_before_may_fail_later(manager: OpManager, add, implementation, op, x) -> None:
    moody = implementation("fine")
    add("default.flagos", moody)
    add("reference.torch")
    assert manager.call(op, x) == "fine"
    moody.error = BOOM
    assert manager.call(op, x) == "reference.torch"
    moody.error = None
    assert manager.call(op, x) == "reference.torch"


def test_where_all_fail_the_callers_error_is_raised_and_nothing_is_remembered(
    manager: OpManager, add, implementation, op, x, warnings_in
) -> None:
    first, last = implementation(error=BOOM), implementation(error=ValueError("bad argument"))
    add("default.flagos", first)
    add("reference.torch", last)
    with pytest.raises(ValueError, match="bad argument") as caught:
        manager.call(op, x)
    assert caught.value.__cause__ is BOOM
    assert warnings_in("") == []
    first.error = last.error = None
    assert manager.call(op, x) == "answer"
    assert first.calls == 2


def test_a_failure_with_nothing_to_fall_back_to_keeps_its_type(manager, add, implementation, op, x) -> None:
    add("vendor.acme", implementation(error=ZeroDivisionError("really")))
    with pytest.raises(ZeroDivisionError, match="really"):
        manager.call(op, x)


def test_not_supported_passes_a_call_on_without_warning_or_memory(
    manager: OpManager, add, implementation, op, x, warnings_in
) -> None:
    picky = implementation(error=NotSupported("odd number of columns"))
    add("default.flagos", picky)
    add("reference.torch")
    assert manager.call(op, x) == "reference.torch"
    picky.error = None
    assert manager.call(op, x) == "answer"
    assert warnings_in("") == []


def test_where_none_supports_the_call_the_error_explains_each(manager, add, implementation, op, x) -> None:
    add("default.flagos", implementation(error=NotSupported("odd number of columns")))
    add("vendor.acme", devices="cuda")
    add("vendor.zorg", supports=lambda *args: "rows must be even")
    with pytest.raises(DispatchError) as caught:
        manager.call(op, x)
    text = str(caught.value)
    assert "NotSupported: odd number of columns" in text
    assert "runs on cuda, not on cpu" in text
    assert "rows must be even" in text


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("device out of memory"),
        MemoryError(),
        RecursionError("maximum recursion depth exceeded"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        torch.AcceleratorError("an earlier kernel failed"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_memory_device_and_interpreter_errors_are_neither_passed_over_nor_remembered(
    manager: OpManager, add, implementation, op, x, error: BaseException
) -> None:
    primary, other = implementation("primary"), implementation("other")
    add("default.flagos", primary)
    add("reference.torch", other)
    for warm in (False, True):  # on the first call of a kind, and on one that was decided before
        primary.error = error
        with pytest.raises(type(error)):
            manager.call(op, x)
        primary.error = None
        assert manager.call(op, x) == "primary", warm
    assert other.calls == 0


class TestMutatingOps:
    """An op whose schema writes an argument: adding one twice would be a wrong result."""

    @pytest.fixture
    def accumulate(self, declared) -> str:
        return declared("(Tensor(a!) total, Tensor part) -> ()", fake=lambda total, part: None)

    @staticmethod
    def half_done(error: Exception) -> Callable[..., None]:
        def accumulate(total: torch.Tensor, part: torch.Tensor) -> None:
            total += part
            raise error

        return accumulate

    @staticmethod
    def done(total: torch.Tensor, part: torch.Tensor) -> None:
        total += part

    @pytest.mark.parametrize("error", [BOOM, NotImplementedError("this far"), ValueError("no")])
    def test_no_second_implementation_runs_after_one_has_started(
        self, manager: OpManager, add, accumulate: str, x: torch.Tensor, error: Exception
    ) -> None:
        add("default.flagos", self.half_done(error), to=accumulate)
        add("reference.torch", self.done, to=accumulate)
        total = torch.zeros_like(x)
        with pytest.raises(type(error), match=str(error)):
            manager.call(accumulate, total, x)
        torch.testing.assert_close(total, x)

    def test_one_that_says_not_supported_first_is_passed_over(
        self, manager: OpManager, add, implementation, accumulate: str, x: torch.Tensor
    ) -> None:
        add("default.flagos", implementation(error=NotSupported("not contiguous")), to=accumulate)
        add("reference.torch", self.done, to=accumulate)
        total = torch.zeros_like(x)
        assert manager.call(accumulate, total, x) is None
        torch.testing.assert_close(total, x)

    def test_one_that_is_not_available_or_declines_is_passed_over(
        self, manager: OpManager, add, accumulate: str, x: torch.Tensor
    ) -> None:
        add("default.flagos", self.done, to=accumulate, is_available=lambda: "no compiler")
        add("default.flaggems", self.done, to=accumulate, supports=lambda total, part: "too small")
        add("reference.torch", self.done, to=accumulate)
        total = torch.zeros_like(x)
        manager.call(accumulate, total, x)
        torch.testing.assert_close(total, x)


class TestStrict:
    @pytest.fixture(params=["environment", "context", "global"])
    def strict(self, request: pytest.FixtureRequest, set_env):
        """Strictness by each of its three ways."""
        if request.param == "environment":
            set_env(TE_FL_STRICT="1")
        elif request.param == "global":
            tefl.set_global_policy(tefl.SelectionPolicy(strict=True))
        else:
            with tefl.with_strict_mode():
                yield
            return
        yield

    @pytest.mark.usefixtures("strict")
    def test_a_failure_is_the_callers_with_its_own_type(self, manager, add, implementation, op, x) -> None:
        failing, other = implementation(error=ZeroDivisionError("really")), implementation()
        add("default.flagos", failing)
        add("reference.torch", other)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="really"):
                manager.call(op, x)
        assert (failing.calls, other.calls) == (2, 0)

    def test_without_strict_the_same_failure_is_passed_over(
        self, manager, add, implementation, op, x
    ) -> None:
        add("default.flagos", implementation(error=ZeroDivisionError("really")))
        add("reference.torch")
        assert manager.call(op, x) == "reference.torch"

    @pytest.mark.usefixtures("strict")
    def test_without_a_stated_order_what_is_unavailable_or_declines_is_passed_over(
        self, manager: OpManager, add, op, x
    ) -> None:
        add("default.flagos", is_available=lambda: "no compiler")
        add("vendor.acme", supports=lambda x: "too small")
        add("reference.torch")
        assert manager.call(op, x) == "reference.torch"

    @pytest.mark.parametrize(
        "order",
        [
            {"TE_FL_PREFER": "vendor"},
            {"TE_FL_PREFER_VENDOR": "1"},
            {"TE_FL_PER_OP": "{op}=vendor:acme|reference"},
        ],
        ids=str,
    )
    def test_the_first_token_of_a_stated_order_must_supply_the_implementation(
        self, manager: OpManager, add, op, x, set_env, order: dict[str, str]
    ) -> None:
        add("vendor.acme", supports=lambda x: "too small")
        add("default.flagos")
        add("reference.torch")
        variables = {name: text.format(op=op) for name, text in order.items()}
        set_env(**variables)
        assert manager.call(op, x) in ("default.flagos", "reference.torch")
        set_env(**variables, TE_FL_STRICT="1")
        with pytest.raises(DispatchError) as caught:
            manager.call(op, x)
        assert "too small" in str(caught.value)
        assert "must supply the implementation" in str(caught.value)

    def test_a_preference_of_a_context_counts_as_a_stated_order(self, manager, add, op, x) -> None:
        add("vendor.acme", is_available=lambda: "no driver")
        add("reference.torch")
        with tefl.with_preference("vendor"):
            assert manager.call(op, x) == "reference.torch"
            with tefl.with_strict_mode(), pytest.raises(DispatchError, match="no driver"):
                manager.call(op, x)

    def test_a_failure_that_was_passed_over_before_is_raised_once_strict(
        self, manager: OpManager, add, implementation, op, x
    ) -> None:
        add("default.flagos", implementation(error=BOOM))
        add("reference.torch")
        assert manager.call(op, x) == "reference.torch"
        with tefl.with_strict_mode(), pytest.raises(RuntimeError, match="boom"):
            manager.call(op, x)
        assert manager.call(op, x) == "reference.torch"


def test_an_exception_that_cannot_be_printed_falls_back_like_any_other(
    manager: OpManager, add, implementation, op: str, warnings_in
) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    add("vendor.acme", implementation(error=Unprintable()))
    add("reference.torch", implementation("served"))
    with tefl.with_preference("vendor"):
        assert manager.call(op) == "served"
    (warning,) = warnings_in("'reference.torch' ran instead")
    assert "Unprintable: (its __str__ raises)" in warning


def test_the_last_failure_is_raised_and_caused_by_the_first(
    manager: OpManager, add, implementation, op: str
) -> None:
    first, last = ZeroDivisionError("first"), ArithmeticError("last")
    add("default.flagos", implementation(error=first))
    add("reference.torch", implementation(error=last))
    with pytest.raises(ArithmeticError) as caught:
        manager.call(op)
    assert caught.value is last
    assert last.__cause__ is first


def test_an_error_that_two_share_does_not_become_its_own_cause(
    manager: OpManager, add, implementation, op: str
) -> None:
    shared = ZeroDivisionError("of a library that both use")
    add("default.flagos", implementation(error=shared))
    add("reference.torch", implementation(error=shared))
    with pytest.raises(ZeroDivisionError):
        manager.call(op)
    assert shared.__cause__ is None
