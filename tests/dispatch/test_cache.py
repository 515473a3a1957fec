"""What is kept between calls, what drops it, and what a call costs."""

from __future__ import annotations

import pytest
import torch

import tefl
from tefl import OpManager, OpRegistry, SelectionPolicy


class CountingRegistry(OpRegistry):
    """Counts how often it is looked into."""

    looks = 0

    def implementations(self, op_name: str):
        self.looks += 1
        return super().implementations(op_name)


@pytest.mark.parametrize("implementations", [10, 1000])
def test_a_call_looks_at_neither_registry_nor_implementations_nor_environment(
    op: str, x: torch.Tensor, implementations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, asked, calls = CountingRegistry(), [], 200
    for i in range(implementations):
        impl_id = f"default.{i:04}"
        registry.register_impl(
            tefl.OpImpl(op, impl_id, "flagos", lambda x: x, priority=-i, is_available=lambda: asked.append(1))
        )
    manager = OpManager(registry)
    manager.call(op, x)
    looks, questions = registry.looks, len(asked)
    assert questions == implementations
    monkeypatch.setattr("tefl._env.os", None)  # the one place that reads variables
    for _ in range(calls):
        manager.call(op, x)
    assert (registry.looks - looks, len(asked) - questions) == (0, 0)


@pytest.mark.parametrize("implementations", [10, 1000])
def test_predicates_of_calls_are_asked_only_up_to_the_one_that_runs(op: str, x, implementations: int) -> None:
    registry, asked = OpRegistry(), []
    for i in range(implementations):
        registry.register_impl(
            tefl.OpImpl(op, f"default.{i:04}", "flagos", lambda x: x, supports=lambda x: asked.append(1))
        )
    manager = OpManager(registry)
    for _ in range(50):
        manager.call(op, x)
    assert len(asked) == 50


def test_a_call_takes_no_lock(op: str, x: torch.Tensor, manager: OpManager, add, monkeypatch) -> None:
    add("default.flagos")
    manager.call(op, x)

    class Untouchable:
        def __enter__(self):
            raise AssertionError("a lock was taken")

        def __exit__(self, *exc_info: object) -> None: ...

    for module in ("call", "lock", "manager", "policy", "recording", "registry"):
        monkeypatch.setattr(f"tefl.dispatch.{module}.LOCK", Untouchable())
    assert manager.call(op, x) == "default.flagos"


def test_a_vendor_that_is_denied_after_it_ran_does_not_run_again(manager: OpManager, add, op: str, x) -> None:
    add("vendor.acme")
    add("reference.torch")
    assert manager.call(op, x) == "vendor.acme"
    with tefl.with_denied_vendors("acme"):
        assert manager.call(op, x) == "reference.torch"
    assert manager.call(op, x) == "vendor.acme"
    tefl.set_global_policy(SelectionPolicy(deny_vendors=["acme"]))
    assert manager.call(op, x) == "reference.torch"


def test_a_vendor_that_ran_inside_a_context_does_not_run_outside(manager: OpManager, add, op: str, x) -> None:
    add("vendor.acme")
    add("reference.torch")
    tefl.set_global_policy(SelectionPolicy(deny_vendors=["acme"]))
    with tefl.policy_context(SelectionPolicy()):
        assert manager.call(op, x) == "vendor.acme"
    assert manager.call(op, x) == "reference.torch"


def test_what_is_registered_or_removed_applies_from_the_next_call_on(
    manager: OpManager, registry: OpRegistry, add, op: str, x
) -> None:
    add("default.flagos", priority=1)
    assert manager.call(op, x) == "default.flagos"
    add("default.flaggems", priority=2)
    assert manager.call(op, x) == "default.flaggems"
    registry.unregister("default.flaggems")
    assert manager.call(op, x) == "default.flagos"


def test_each_dtype_is_decided_by_itself(manager: OpManager, add, op: str, x) -> None:
    add("default.flagos", supported_dtypes={torch.float32})
    add("reference.torch")
    assert [manager.call(op, x), manager.call(op, x.double()), manager.call(op, x)] == [
        "default.flagos",
        "reference.torch",
        "default.flagos",
    ]


def test_the_dtypes_of_all_tensors_count_in_their_order(manager: OpManager, add, op: str, x) -> None:
    def is_available(facts) -> str | None:
        return None if facts.dtypes[:1] == (torch.float64,) else "the first must be float64"

    add("default.flagos", is_available=is_available)
    add("reference.torch")
    assert manager.call(op, x.double(), x) == "default.flagos"
    assert manager.call(op, x, x.double()) == "reference.torch"
    assert manager.call(op, [x, x.double(), x], x) == "reference.torch"


def test_a_list_of_tensors_counts_with_its_distinct_dtypes(manager: OpManager, add, op: str, x) -> None:
    seen = []
    add("default.flagos", is_available=lambda facts: seen.append(facts.dtypes))
    manager.call(op, [x] * 100 + [x.double()], x)
    assert seen == [(torch.float32, torch.float64, torch.float32)]


def test_nobody_inherits_an_empty_allow_list_as_all(manager: OpManager, add, op: str, x, set_env) -> None:
    add("vendor.acme")
    add("reference.torch")
    set_env(TE_FL_ALLOW_VENDORS=" , ")
    with pytest.raises(ValueError, match="TE_FL_ALLOW_VENDORS"):
        manager.call(op, x)
    set_env(TE_FL_ALLOW_VENDORS="nobody")
    assert manager.call(op, x) == "reference.torch"


def test_skip_cuda_makes_the_cuda_kernels_unavailable_with_that_reason(x: torch.Tensor, set_env) -> None:
    def reason() -> str:
        candidates = tefl.explain("rmsnorm_fwd", x, torch.ones(3)).candidates
        return next(c.reason for c in candidates if c.impl_id == "vendor.cuda")

    assert "TE_FL_SKIP_CUDA" not in reason()
    set_env(TE_FL_SKIP_CUDA="1")
    assert "TE_FL_SKIP_CUDA=1" in reason()
