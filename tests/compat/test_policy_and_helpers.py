"""TE-FL's policy functions, and the helpers of its tests."""

from __future__ import annotations

import pytest
import torch

import tefl
from tefl.dispatch.policy import current_policy


@pytest.fixture
def policy(core):
    from transformer_engine.plugin.core import policy

    return policy


def test_there_is_one_policy_for_both(policy) -> None:
    before = policy.set_global_policy(policy.SelectionPolicy.from_dict(prefer="VENDOR", strict=True))
    assert before.prefer == "flagos"
    assert (current_policy().prefer, current_policy().strict) == ("vendor", True)
    assert policy.get_policy() is current_policy()
    policy.reset_global_policy()
    with policy.with_preference("reference"):
        assert (
            tefl.explain("rmsnorm_fwd", torch.ones(1, 2), torch.ones(2)).winner.impl_id == "reference.torch"
        )


def test_a_policy_answers_what_theirs_does(policy) -> None:
    made = policy.SelectionPolicy.from_dict(
        per_op_order={"op": ["vendor", "flagos"]}, deny_vendors={"intel"}, allow_vendors={"nvidia", "amd"}
    )
    assert made.per_op_order_dict == {"op": ["vendor", "flagos"]}
    assert (made.get_per_op_order("op"), made.get_per_op_order("x")) == (["vendor", "flagos"], None)
    assert made.get_default_order() == ["flagos", "vendor", "reference"]
    assert [made.is_vendor_allowed(name) for name in ("nvidia", "cuda", "intel", "other")] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(ValueError, match="prefer='fast'"):
        policy.SelectionPolicy(prefer="fast")
    assert {
        policy.PREFER_DEFAULT,
        policy.PREFER_VENDOR,
        policy.PREFER_REFERENCE,
    } == policy.VALID_PREFER_VALUES


def test_the_epoch_grows_when_it_is_bumped(policy) -> None:
    before = policy.get_policy_epoch()
    assert policy.bump_policy_epoch() == policy.get_policy_epoch() > before


@pytest.fixture
def helpers(core, manager, monkeypatch: pytest.MonkeyPatch):
    """The helpers over the fixture ``manager``."""
    from tefl.compat.transformer_engine import manager as managers

    monkeypatch.setattr(managers, "_default", manager)
    from transformer_engine.plugin import test_utils

    return test_utils


def test_backends_are_the_kinds_and_the_vendors(helpers, add) -> None:
    add("rmsnorm_fwd", print)
    found = helpers.get_available_backends()
    assert set(found) >= {"flagos", "nvidia", "plugin", "reference"}  # an installed plugin may bring more
    assert found == sorted(set(found))


def test_a_backends_ops_are_methods_and_one_that_it_lacks_is_not_implemented(helpers, add) -> None:
    add("rmsnorm_fwd", lambda x, *rest: (x, None, x[:, 0]))
    x, w = torch.randn(2, 8), torch.randn(8)
    call = (x, w, 1e-5, None, None, torch.float32, 0, False)
    assert helpers.get_backend("plugin").rmsnorm_fwd(*call)[0] is x
    assert helpers.get_backend("vendor:plugin").rmsnorm_fwd(*call)[0] is x
    y, _, _ = helpers.get_backend("reference").rmsnorm_fwd(*call)
    assert torch.equal(y, torch.ops.tefl.rmsnorm_fwd(x, w)[0])
    for name, op in (("plugin", "layernorm_fwd"), ("reference", "swiglu")):
        with pytest.raises(NotImplementedError):
            getattr(helpers.get_backend(name), op)(*call[:2])


def test_a_test_case_counts_and_compares(helpers, capsys) -> None:
    case = helpers.TestCase("Norms", "all of them")
    x = helpers.generate_random_tensor((2, 3), dtype=torch.bfloat16, requires_grad=True)
    assert (x.shape, x.dtype, x.requires_grad, x.is_leaf) == ((2, 3), torch.bfloat16, True, True)
    case.assert_close(x, x)
    with pytest.raises(AssertionError, match="far off"):
        case.assert_close(torch.zeros(1), torch.ones(1), msg="far off")
    assert case.report()
    case.failed += 1
    assert not case.report()
    assert "Norms: 1 passed, 0 failed, 0 skipped" in capsys.readouterr().out
    assert all(len(shape) >= 2 for shape in helpers.generate_test_shapes())


def test_a_default_manager_can_be_started_anew(core) -> None:
    first = core.get_manager()
    assert first.tefl is tefl.get_manager()
    try:
        core.reset_registry()
        assert core.get_default_manager() is not first
        assert core.get_registry().list_operators() == []
        assert "rmsnorm_fwd" in dir(core.get_tefl_module())
    finally:
        from tefl.compat.transformer_engine import manager, ops

        manager._default = None
        ops.reset_tefl_module()
