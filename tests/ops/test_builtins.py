"""The built-in implementations: what is listed, and that listing imports nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tefl
from tefl._lazy import Lazy
from tefl.kernels import register_builtins

from ..conftest import RunPython

PRELUDE = """
import sys, torch
before = set(sys.modules)
import tefl
"""


@pytest.fixture
def loaded(fresh_python: RunPython) -> Callable[[str], set[str]]:
    """Return the modules that a fresh interpreter has loaded beyond torch's own after some code."""

    def loaded(code: str) -> set[str]:
        report = "print(*sorted(set(sys.modules) - before))"
        return set(fresh_python(f"{PRELUDE}{code}\n{report}").stdout.split())

    return loaded


def test_every_declared_op_has_a_reference() -> None:
    registry = tefl.OpRegistry()
    register_builtins(registry)
    for decl in tefl.ops():
        if decl.family != "test":
            assert registry.get(decl.name, "reference.torch").priority == 50


def test_registering_the_builtins_imports_no_kernel(loaded) -> None:
    modules = loaded("r = tefl.OpRegistry(); tefl.kernels.register_builtins(r)")
    assert "tefl.kernels.reference.table" in modules
    assert not modules & {"triton", "flag_gems", "torch._dynamo", "tefl.kernels.reference.norm"}


def test_importing_tefl_declares_the_ops_and_loads_nothing_heavy(loaded) -> None:
    modules = loaded("assert len(tefl.ops()) >= 7")
    assert "tefl.ops.norm" in modules
    assert not modules & {"triton", "torch._dynamo", "sympy", "tefl.kernels.reference.table"}


def test_a_call_on_the_cpu_loads_the_reference_and_no_compiler(loaded) -> None:
    modules = loaded("torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4))")
    assert "tefl.kernels.reference.norm" in modules
    assert not modules & {"torch._dynamo", "sympy", "flag_gems"}


def test_the_package_of_ops_can_be_called_for_their_list() -> None:
    import tefl.ops.norm

    assert {decl.name for decl in tefl.ops.norm.DECLARATIONS} <= {decl.name for decl in tefl.ops()}


def test_a_lazy_function_is_imported_by_its_first_call() -> None:
    sqrt = Lazy("math", "sqrt")
    assert "math.sqrt" in repr(sqrt)
    assert sqrt(9.0) == 3.0
    assert sqrt.resolve() is sqrt.resolve()


def test_a_lazy_function_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="no_such_function"):
        Lazy("math", "no_such_function")()
