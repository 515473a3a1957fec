"""A backend that is asked for after the kernels were imported for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from .spec_trees import install


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")


CLAIM = """
    import tefl
    from tefl.dispatch import set_active_provider
    from tefl.kernels import spec
    def claim(name):
        set_active_provider(name=name, device_name="dev", alias="cpu", arch=lambda index: None)
"""


def test_asking_for_another_backend_after_the_kernels_were_imported_is_an_error(
    fresh_python, tmp_path: Path
) -> None:
    install(tmp_path, {"language/_chip.py": ""})
    done = fresh_python(
        CLAIM
        + """
    import os
    import tefl.kernels.triton._utils
    os.environ["TEFL_KERNEL_BACKEND"] = "chip"
    for ask in (spec.active_backend, lambda: spec.spec("extend", {}), lambda: spec.spec_func("programs")):
        try:
            ask()
        except ImportError as error:
            print(error)
    """,
        path=[tmp_path],
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("TEFL_KERNEL_BACKEND=chip comes too late")
        assert "imported for trunk alone" in line


def test_calls_after_another_backend_was_asked_for_go_on_and_a_warning_and_explain_tell(
    fresh_python, tmp_path: Path
) -> None:
    install(tmp_path, {"language/_chip.py": ""})
    done = fresh_python(
        """
    import os, sys, torch, tefl
    x, weight = torch.ones(2, 4), torch.ones(4)
    def call():
        torch.ops.tefl.rmsnorm_fwd(x, weight)
        print("called", file=sys.stderr)
    call()
    os.environ["TEFL_KERNEL_BACKEND"] = "chip"
    call()
    for _ in range(2):
        tefl.reset_global_policy()
        call()
    decision = tefl.explain("rmsnorm_fwd", x, weight)
    print(decision.winner.impl_id, decision.winner.provenance)
    """,
        path=[tmp_path],
        TRITON_INTERPRET="1",
        TEFL_LOG_LEVEL="WARNING",
    )
    late = (
        "TEFL_KERNEL_BACKEND=chip comes too late: the kernels of this process were imported for trunk alone"
    )
    assert done.stdout.startswith(f"default.flagos kernels of trunk alone; {late}")
    first, second, warning, third, fourth = done.stderr.splitlines()
    assert {first, second, third, fourth} == {"called"}
    assert late in warning


def test_a_provider_with_a_tree_that_is_claimed_too_late_gets_no_kernels_of_trunk(
    fresh_python, tmp_path: Path
) -> None:
    install(tmp_path, {"language/_chip.py": ""})
    done = fresh_python(
        CLAIM
        + """
    import tefl.kernels.triton._utils
    from tefl.dispatch import Facts
    from tefl.kernels.triton.table import unavailable
    claim("chip")
    print(unavailable(Facts("privateuse1", 0, provider="chip", alias="cpu")))
    print(unavailable(Facts("privateuse1", 0, provider="plain", alias="cpu")))
    try:
        spec.active_backend()
    except ImportError as error:
        print(error)
    """,
        path=[tmp_path],
        TRITON_INTERPRET="1",
    )
    reason, plain, error = done.stdout.splitlines()
    assert reason == error
    assert "imported for trunk alone before provider 'chip'" in reason
    assert "claim the device first" in reason
    assert plain == "None"


def test_a_decision_tells_of_a_provider_that_is_claimed_too_late(fresh_python, tmp_path: Path) -> None:
    install(tmp_path, {"language/_chip.py": ""})
    done = fresh_python(
        CLAIM
        + """
    import torch
    import tefl.kernels.triton._utils
    claim("chip")
    print(tefl.explain("rmsnorm_fwd", torch.ones(2, 4), torch.ones(4)).winner.impl_id)
    """,
        path=[tmp_path],
    )
    assert done.stdout == "reference.torch\n"
