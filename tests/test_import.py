"""What importing tefl costs and what it leaves alone."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

import tefl
from tefl import _native

BUDGET_MS = 30.0


def test_import_stays_within_its_budget_over_torch(fresh_python, tmp_path: Path) -> None:
    code = """
        import time, torch
        start = time.process_time()  # not the clock on the wall: other processes run beside this test
        import tefl
        print((time.process_time() - start) * 1e3)
    """
    with_bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    fresh_python(code, **with_bytecode)  # compiles, as an installation does
    times = [float(fresh_python(code, **with_bytecode).stdout) for _ in range(5)]
    assert statistics.median(times) < BUDGET_MS, times


def test_import_loads_nothing_heavy_and_touches_no_device(fresh_python) -> None:
    done = fresh_python(
        """
        import sys, torch
        before = set(sys.modules)
        import tefl
        heavy = {"triton", "torch._dynamo", "torch._inductor", "tefl.privateuse1"}
        print(sorted(heavy & (set(sys.modules) - before)))
        print(torch.cuda.is_initialized(), torch._C._get_privateuse1_backend_name())
        print(len(tefl.ops()) > 0, hasattr(torch.ops.tefl, "rmsnorm_fwd"))
        """
    )
    assert done.stdout.splitlines() == ["[]", "False privateuseone", "True True"]


@pytest.mark.parametrize(
    "order", ["torch, tefl", "tefl, torch", "triton, tefl, torch", "tefl, triton, torch"]
)
def test_every_order_of_imports_works(fresh_python, order: str) -> None:
    if "triton" in order:
        pytest.importorskip("triton", reason="an order with triton needs triton")
    code = (
        f"import {order}; print(float(torch.ops.tefl.rmsnorm_fwd(torch.ones(1, 4), torch.ones(4))[0].sum()))"
    )
    assert float(fresh_python(code).stdout) == pytest.approx(4.0, rel=1e-4)


def test_every_public_name_is_there() -> None:
    for name in tefl.__all__:
        assert getattr(tefl, name) is not None
    assert set(tefl.__all__) <= set(dir(tefl))


def test_every_name_that_is_listed_can_be_had() -> None:
    assert [name for name in dir(tefl) if not hasattr(tefl, name)] == []


def test_only_public_names_are_listed() -> None:
    beside = {"__version__", "compat", "dispatch"}
    assert set(dir(tefl)) == {*tefl.__all__, *beside}
    assert [name for name in dir(tefl) if name.startswith("_")] == ["__version__"]
    assert {"Any", "Path", "importlib", "torch", "annotations"}.isdisjoint(dir(tefl))


def test_the_errors_to_catch_are_names_of_the_package_and_in_the_docs() -> None:
    text = (Path(__file__).parent.parent / "docs" / "policy.md").read_text()
    listed = dict(re.findall(r"^\| `tefl\.(\w+)` \| `(\w+)` \|", text, re.MULTILINE))
    errors = {
        n: e for n in tefl.__all__ if isinstance(e := getattr(tefl, n), type) and issubclass(e, Exception)
    }
    assert {name: error.__base__.__name__ for name, error in errors.items()} == listed
    assert set(listed) >= {"DispatchError", "NotSupported", "Deviation", "UndeclaredWrite"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tefl' has no attribute 'no_such_name'"):
        tefl.no_such_name  # noqa: B018


def test_dispatch_and_kernels_do_not_import_the_device(fresh_python) -> None:
    done = fresh_python(
        """
        import importlib.metadata, sys, torch, tefl
        importlib.metadata.entry_points = lambda **group: ()  # an installed plugin may well import the device
        for impl_op in tefl.ops():
            tefl.get_manager().resolve(impl_op.name)
        print("tefl.privateuse1" in sys.modules)
        """
    )
    assert done.stdout.strip() == "False"


def test_no_source_of_dispatch_or_kernels_names_the_device_package() -> None:
    package = Path(tefl.__file__).parent
    sources = [path for part in ("dispatch", "kernels") for path in (package / part).rglob("*.py")]
    assert sources
    importing = [path for path in sources if "tefl.privateuse1" in path.read_text()]
    assert importing == []


def test_cmake_finds_its_configuration_where_python_says() -> None:
    assert (Path(tefl.get_cmake_dir()) / "teflConfig.cmake").is_file()


@pytest.mark.parametrize(
    ("built", "running"), [("2.13.0+cu130", "2.12.1"), ("2.11.0", "2.110.0"), ("2.13.0", "3.13.0")]
)
def test_a_build_for_another_torch_is_an_import_error_that_names_both(built: str, running: str) -> None:
    with pytest.raises(ImportError) as caught:
        _native.check_torch({"torch": built}, running)
    message = str(caught.value)
    assert built in message
    assert running in message
    assert "pip install --no-build-isolation" in message


@pytest.mark.parametrize(("built", "running"), [("2.13.0+cpu", "2.13.1"), ("2.13.0", "2.13.0a0+git1234")])
def test_patch_releases_and_build_variants_of_one_torch_go_together(built: str, running: str) -> None:
    _native.check_torch({"torch": built}, running)


def test_without_a_build_there_is_nothing_to_compare() -> None:
    _native.check_torch(None, "2.13.0")


def test_what_the_build_wrote_down_is_read() -> None:
    facts = _native.build_facts()
    path = Path(tefl.__file__).with_name("_build.json")
    assert facts == (json.loads(path.read_text()) if path.exists() else None)
