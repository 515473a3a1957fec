"""What the device's tests share: a fresh interpreter for every claim, and libraries compiled on the spot."""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
INCLUDE = ROOT / "csrc" / "include"

# Helper modules of this folder, for the tests here and for the interpreters they start.
sys.path.insert(0, str(HERE))

from interpreters import CLAIM, Fork, Interpreter, Site, link_packages  # noqa: E402
from sim_driver import LIBRARY, Kernels, Sim  # noqa: E402


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def python(packages: Path) -> Iterator[Interpreter]:
    """Runs code in a process that has torch imported and nothing else."""
    fork = Fork(packages)
    yield fork
    fork.close()


@pytest.fixture
def opaque(python: Interpreter) -> Callable[..., str]:
    """Run code on the simulator with memory that the host cannot touch, and return what it printed."""

    def run(code: str, **environment: str) -> str:
        return python(CLAIM + textwrap.dedent(code), TEFL_SIM_OPAQUE="1", **environment)

    return run


@pytest.fixture(scope="session")
def fresh_python(packages: Path) -> Interpreter:
    """Runs code in a new interpreter."""
    return Interpreter(packages)


def pytest_configure(config: pytest.Config) -> None:
    os.environ["TEST_PROVIDER"] = config.getoption("--provider")  # before claimed.py is first imported
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # convolutions are compared with the CPU's


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Claim before any test runs: torch's autograd engine counts devices at the process's first backward.

    A test that another provider than sim cannot run is skipped: one marked `sim_only(reason)` or in a file
    about the simulator, and one that needs a second device where there is one, which is said by
    `needs_two_devices` or by naming `maca:1`.
    """
    ours = [item for item in items if HERE in item.path.parents]
    devices = _claim().device_count() if ours else 0
    from claimed import PROVIDER

    for item in ours:
        if item.path.name.startswith("test_sim_"):
            item.add_marker(pytest.mark.sim_only("about the simulator itself"))
        elif {"closed", "device_kernels", "hold"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.sim_only("holds streams by kernels of the simulator"))
        only = item.get_closest_marker("sim_only")
        if only is not None and PROVIDER != "sim":
            item.add_marker(pytest.mark.skip(reason=f"sim only: {only.args[0]}"))
        elif item.get_closest_marker("cuda_only") is not None and PROVIDER != "cuda":
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU and --provider cuda"))
        elif devices < 2 and _needs_two_devices(item):
            item.add_marker(pytest.mark.skip(reason=f"needs two devices, {PROVIDER} has {devices}"))


def _needs_two_devices(item: pytest.Item) -> bool:
    if item.get_closest_marker("needs_two_devices") is not None:
        return True
    source = inspect.getsource(item.function) if isinstance(item, pytest.Function) else ""
    return re.search(r"maca:(1\b|\{)", f"{item.name} {source}") is not None


@pytest.fixture(scope="session")
def maca() -> ModuleType:
    """The device module of the run's provider, claimed as `maca` for this process and for good."""
    return _claim()


def _claim() -> ModuleType:
    import claimed
    import torch

    claimed.claim()
    return torch.get_device_module("maca")


Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """A function (name, C source) -> path of the shared library made of it."""

    def compile_source(name: str, source: str, *flags: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        file, library = folder / f"{name}.c", folder / f"{name}.so"
        file.write_text(source)
        includes = [f"-I{INCLUDE}", f"-I{ROOT / 'csrc' / 'providers' / 'sim'}"]
        subprocess.run(
            ["gcc", "-shared", "-fPIC", *includes, *flags, "-o", str(library), str(file)], check=True
        )
        return library

    return compile_source


@pytest.fixture
def site(tmp_path: Path) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder)


@pytest.fixture(scope="session")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Sim:
    """The provider from a copy of its library: another instance than the device of this process may have."""
    return Sim(shutil.copy(LIBRARY, tmp_path_factory.mktemp("sim")))


@pytest.fixture(scope="session")
def image(compile_library: Compile) -> bytes:
    """A binary for the simulator: the kernels of sim_kernels.c."""
    source = (HERE / "sim_kernels.c").read_text()
    return compile_library("sim_kernels", source, "-O1", "-Wall", "-Wextra", "-Werror").read_bytes()


@pytest.fixture
def kernels(sim: Sim, image: bytes) -> Kernels:
    """The test kernels on device 0."""
    return Kernels(sim, image, 0)


@pytest.fixture(scope="session")
def device_kernels(maca: ModuleType, image: bytes) -> Kernels:
    """The test kernels, in the provider instance that the device of this process uses."""
    maca.init()
    return Kernels(Sim(LIBRARY, start=False), image, 0)


@pytest.fixture
def closed(maca: ModuleType, device_kernels: Kernels) -> Iterator[Callable[[Any], ctypes.c_int32]]:
    """A function stream -> holds the stream; all are opened when the test ends."""
    flags = []

    def close(stream: Any) -> ctypes.c_int32:
        from tefl import _native

        with stream:
            handle = ctypes.c_void_p(_native.load().raw_stream(stream.device_index))
        flags.append(device_kernels.close(handle))
        return flags[-1]

    yield close
    for flag in flags:
        flag.value = 1
    for index in (0, 1):
        maca.synchronize(index)


@pytest.fixture
def replace_kernel() -> Iterator[Callable[[str, Callable[..., Any]], None]]:
    """Give an operator of PyTorch's another kernel on the alias device, in Python, for a test."""
    import torch
    from claimed import ALIAS

    library = torch.library.Library("aten", "IMPL")
    yield lambda name, kernel: library.impl(name, kernel, ALIAS.upper(), allow_override=True)
    library._destroy()
