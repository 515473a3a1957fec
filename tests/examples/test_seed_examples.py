"""The two ways to add an implementation, as files that run and log what the documentation shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

FreshPython = Callable[..., subprocess.CompletedProcess[str]]


def check_log(stderr: str, impl_id: str, vendor: str) -> None:
    """The two lines of the documentation, in their order."""
    registered = re.search(r"^\[TE-FL manager\.py:\d+ INFO\] Registered impl_ids: (\[.+\])$", stderr, re.M)
    using = re.search(
        rf"^\[TE-FL manager\.py:\d+ INFO\] Op 'rmsnorm_fwd' using '{re.escape(impl_id)}' "
        rf"\(kind=vendor, vendor={vendor}\)$",
        stderr,
        re.M,
    )
    assert registered, stderr
    assert using, stderr
    assert registered.start() < using.start()
    for name in ("default.flagos", "reference.torch", impl_id):
        assert repr(name) in registered[1]


def test_the_three_steps_in_one_file(fresh_python: FreshPython) -> None:
    done = fresh_python(args=[str(EXAMPLES / "example_intree.py")])
    check_log(done.stderr, "vendor.mybackend", "mybackend")
    assert done.stdout == "output (4, 64), rsigma (4,)\n"


def test_a_plugin_named_in_the_environment(fresh_python: FreshPython) -> None:
    done = fresh_python(
        args=[str(EXAMPLES / "example_outtree.py")],
        path=[EXAMPLES / "my_vendor_plugin"],
        TE_FL_PLUGIN_MODULES="my_vendor_plugin",
    )
    check_log(done.stderr, "vendor.myvendor", "myvendor")
    assert "rmsnorm_fwd on cpu: vendor.myvendor x1" in done.stdout
    assert "plugin my_vendor_plugin by TE_FL_PLUGIN_MODULES: loaded" in done.stdout


def test_the_same_plugin_installed(fresh_python: FreshPython, installed: Path) -> None:
    done = fresh_python(args=[str(EXAMPLES / "example_outtree.py")], path=[installed])
    check_log(done.stderr, "vendor.myvendor", "myvendor")
    assert "rmsnorm_fwd on cpu: vendor.myvendor x1" in done.stdout
    assert "plugin my_vendor by te_fl.plugin: loaded" in done.stdout


def test_the_same_plugin_installed_and_named_is_loaded_once(
    fresh_python: FreshPython, installed: Path
) -> None:
    done = fresh_python(
        args=[str(EXAMPLES / "example_outtree.py")],
        path=[installed],
        TE_FL_PLUGIN_MODULES="my_vendor_plugin",
    )
    assert "plugin my_vendor by te_fl.plugin: loaded" in done.stdout
    assert "plugin my_vendor_plugin by TE_FL_PLUGIN_MODULES: found before" in done.stdout


def test_the_file_alone_finds_the_plugin_beside_it(fresh_python: FreshPython) -> None:
    done = fresh_python(args=[str(EXAMPLES / "example_outtree.py")])
    check_log(done.stderr, "vendor.myvendor", "myvendor")


def test_statistics_with_a_last_dimension_of_one_are_repaired_with_one_warning(
    fresh_python: FreshPython,
) -> None:
    done = fresh_python(args=[str(EXAMPLES / "example_intree.py")])
    (warning,) = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert "'vendor.mybackend' returned result 1 as float32 (4, 1), brought to float32 (4,)" in warning


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugin as pip installs it."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "my_vendor_plugin"  # pip builds inside the source folder
    shutil.copytree(EXAMPLES / "my_vendor_plugin", source)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True, capture_output=True, text=True)
    return folder
