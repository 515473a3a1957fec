"""The example provider installed as a user would install it, and a way to run Python beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tefl

from .. import processes
from ..conftest import locked

ROOT = Path(__file__).resolve().parents[2]
PROVIDER = ROOT / "examples" / "maca_provider"

RunPython = Callable[..., processes.Result]


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """Return an environment with these folders first on sys.path, and of our settings only `variables`.

    One thread: training runs of several test workers would otherwise wait for each other.
    """
    variables = {"OMP_NUM_THREADS": "1", **variables}
    return processes.environment(*folders, without=("PYTHONPATH", "MACA_"), autoload=True, **variables)


@pytest.fixture(scope="session")
def maca(shared_folder: Path) -> Path:
    """Install the example provider by pip into a folder of its own, once a test run; return the folder."""
    target = shared_folder / "maca-installed"
    with locked(shared_folder / "maca.lock"):
        if not target.exists():
            _install(shared_folder / "maca-source", target)
    return target


def _install(source: Path, target: Path) -> None:
    # From a copy, because pip builds inside the source folder.
    shutil.copytree(PROVIDER, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps"]
    env = environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    _run([*pip, "--target", str(target), str(source)], env)


@pytest.fixture(scope="session")
def cmake_library(shared_folder: Path) -> Path:
    """Build the example provider's library by CMake alone, once a test run; return its path."""
    build = shared_folder / "maca-cmake"
    beside_python = os.path.dirname(sys.executable)  # where pip puts cmake
    cmake = shutil.which("cmake", path=os.pathsep.join([beside_python, os.environ["PATH"]]))
    assert cmake, "cmake is not installed"
    with locked(shared_folder / "maca-cmake.lock"):
        _run([cmake, "-S", str(PROVIDER), "-B", str(build), f"-Dtefl_ROOT={tefl.get_cmake_dir()}"])
        _run([cmake, "--build", str(build)])
    return build / "libmaca.so"


def _run(command: list[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def run_python(maca: Path) -> RunPython:
    """Run Python with the provider installed: run_python("-c", "...", TE_FL_STRICT="1")."""

    def run(*arguments: str | Path, **variables: str) -> processes.Result:
        return processes.run_python(*arguments, env=environment(maca, **variables), timeout=300)

    return run
