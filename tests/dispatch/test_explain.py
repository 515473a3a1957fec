"""The decision as a value, its text, and where that text shows up."""

from __future__ import annotations

import logging

import pytest
import torch

import tefl
from tefl import DispatchError, OpManager


@pytest.fixture
def four(add) -> None:
    """One of each fate."""
    add("default.flagos", is_available=lambda: "triton is not installed", priority=150)
    add("vendor.acme", supports=lambda x: "rows must be even", priority=200)
    add("vendor.zorg")
    add("reference.torch", priority=50)


@pytest.mark.usefixtures("four")
def test_every_implementation_is_listed_with_its_reason(manager: OpManager, op: str, x: torch.Tensor) -> None:
    with tefl.with_denied_vendors("zorg"):
        decision = manager.explain(op, x)
    assert decision.winner is not None
    assert decision.winner.impl_id == "reference.torch"
    assert [(c.impl_id, c.accepted, c.reason) for c in decision.candidates] == [
        ("default.flagos", False, "triton is not installed"),
        ("vendor.acme", False, "rows must be even"),
        ("reference.torch", True, "chosen; fits"),
        ("vendor.zorg", False, "vendor 'zorg' is denied"),
    ]


@pytest.mark.usefixtures("four")
def test_the_text_shows_call_policy_and_each_candidate(manager: OpManager, op: str, x: torch.Tensor) -> None:
    with tefl.with_denied_vendors("zorg"):
        text = str(manager.explain(op, x))
    assert text == (
        f"Op {op!r} on cpu (float32), policy prefer=flagos strict=0 deny=zorg\n"
        "     default.flagos   (kind=flagos, vendor=None, priority=150): triton is not installed\n"
        "     vendor.acme      (kind=vendor, vendor=acme, priority=200): rows must be even\n"
        "  -> reference.torch  (kind=reference, vendor=None, priority=50): chosen; fits\n"
        "     vendor.zorg      (kind=vendor, vendor=zorg, priority=0): vendor 'zorg' is denied"
    )


@pytest.mark.usefixtures("four")
def test_one_that_fits_and_comes_later_says_so(manager: OpManager, op: str, x: torch.Tensor) -> None:
    decision = manager.explain(op, x)
    assert decision.winner is not None
    assert decision.winner.impl_id == "vendor.zorg"
    assert decision.candidates[-1].reason == "fits, but comes later in the order"
    assert decision.candidates[-1].accepted


def test_one_that_names_a_faster_one_says_which_and_why(manager: OpManager, add, op: str, x) -> None:
    add("default.flagos", supports=lambda x: tefl.Slower("vendor.cuda", "recorded 4% faster"))
    add("vendor.cuda", vendor="nvidia")
    decision = manager.explain(op, x)
    assert decision.winner is not None
    assert decision.winner.impl_id == "vendor.cuda"
    assert decision.candidates[0].reason == "fits, but names 'vendor.cuda' as faster: recorded 4% faster"


def test_the_winner_is_what_a_call_runs_and_nothing_runs_for_it(
    manager: OpManager, add, implementation, op: str, x: torch.Tensor
) -> None:
    fn = implementation()
    impl = add("default.flagos", fn)
    assert manager.explain(op, x).winner.impl is impl
    assert manager.resolve(op, x) is impl
    assert fn.calls == 0


def test_a_remembered_failure_is_the_reason(manager: OpManager, add, implementation, op: str, x) -> None:
    add("default.flagos", implementation(error=RuntimeError("boom")))
    add("reference.torch")
    manager.call(op, x)
    failed, winner = manager.explain(op, x).candidates
    assert not failed.accepted
    assert failed.reason.startswith("failed before, RuntimeError: boom")
    assert winner.impl_id == "reference.torch"


@pytest.mark.usefixtures("four")
def test_the_error_of_a_call_that_nothing_serves_has_the_same_text(manager, registry, op: str, x) -> None:
    registry.unregister("reference.torch", op)
    with tefl.with_denied_vendors("zorg"):
        with pytest.raises(DispatchError) as of_call:
            manager.call(op, x)
        with pytest.raises(DispatchError) as of_resolve:
            manager.resolve(op, x)
        text = str(manager.explain(op, x))
    assert text in str(of_call.value)
    assert text in str(of_resolve.value)


@pytest.mark.usefixtures("four")
def test_the_debug_log_has_the_same_text(manager: OpManager, op: str, x, logged: list) -> None:
    log = logging.getLogger("TE-FL")
    manager.explain(op, x)
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        manager.call(op, x)
    finally:
        log.setLevel(level)
    text = str(manager.explain(op, x))
    assert text in [record.getMessage() for record in logged if record.levelno == logging.DEBUG]


def test_without_arguments_the_predicates_on_arguments_are_not_asked(
    manager: OpManager, add, op: str
) -> None:
    add("default.flagos", supports=lambda x: "never")
    assert manager.resolve(op).impl_id == "default.flagos"


def test_an_op_with_no_implementation_left_says_so(manager: OpManager, declared) -> None:
    name = declared("(Tensor input) -> Tensor")
    with pytest.raises(DispatchError, match="no implementation is registered"):
        manager.call(name, torch.ones(1))


def test_bad_arguments_are_the_same_error_as_in_a_call(manager: OpManager, declared) -> None:
    def check(input: torch.Tensor) -> None:
        raise ValueError("input must have a row")

    name = declared("(Tensor input) -> Tensor", check=check)
    with pytest.raises(ValueError, match="must have a row"):
        manager.explain(name, torch.ones(0))


def test_the_module_function_explains_the_process_wide_manager() -> None:
    x, w = torch.ones(2, 4), torch.ones(4)
    decision = tefl.explain("rmsnorm_fwd", x, weight=w)
    assert decision.winner is not None
    assert decision.winner.impl_id == "reference.torch"
    assert {c.impl_id for c in decision.candidates} >= {"default.flagos", "vendor.cuda", "reference.torch"}


@pytest.mark.parametrize("name", [5, None, b"rmsnorm_fwd", ["rmsnorm_fwd"]], ids=str)
def test_what_is_no_name_of_an_op_is_refused(name: object) -> None:
    for asks in (tefl.explain, tefl.get_manager().call, tefl.get_manager().resolve):
        with pytest.raises(TypeError, match="op_name must be the name of an op, such as 'rmsnorm_fwd', got "):
            asks(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": "a"}, "argument 'eps' must be a number, got 'a', a str"),
        ({"eps": None}, "argument 'eps' must be a number, got None"),
        ({"zero_centered_gamma": "no"}, "argument 'zero_centered_gamma' must be True or False, got 'no'"),
        ({"out_dtype": "bf16"}, "argument 'out_dtype' must be a whole number or a torch.dtype, got 'bf16'"),
    ],
    ids=str,
)
def test_an_argument_that_is_no_number_is_named(options: dict, message: str) -> None:
    for asks in (tefl.explain, tefl.get_manager().call):
        with pytest.raises(TypeError) as caught:
            asks("rmsnorm_fwd", torch.ones(2, 4), torch.ones(4), **options)
        assert str(caught.value).startswith(f"rmsnorm_fwd: {message}")


def test_what_counts_as_a_number_is_taken() -> None:
    call = tefl.get_manager().call
    for options in ({"eps": 1}, {"eps": torch.tensor(1e-3)}, {"zero_centered_gamma": 1}, {"out_dtype": None}):
        call("rmsnorm_fwd", torch.ones(2, 4), torch.ones(4), **options)
