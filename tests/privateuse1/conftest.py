"""What the device's tests share: a fresh interpreter for every claim, and libraries compiled on the spot."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
INCLUDE = ROOT / "csrc" / "include"

# Helper modules of this folder, for the tests here and for the interpreters they start.
sys.path.insert(0, str(HERE))


class Interpreter:
    """Runs Python code in a process of its own: a device is claimed once per process and for good."""

    def __call__(self, code: str, *, check: bool = True, timeout: float = 120, **environment: str) -> str:
        """Run `code`; return what it printed. With check=False, return stdout and stderr together."""
        done = self.run(code, timeout=timeout, **environment)
        if check:
            assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
            return done.stdout.strip()
        return (done.stdout + done.stderr).strip()

    def run(self, code: str, *, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `code`; TEFL_* variables of this process are not passed on, `environment` is."""
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("TEFL_", "TE_FL_"))
        }
        defaults = {
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
        }
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**inherited, **defaults, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd="/",
        )


@pytest.fixture(scope="session")
def python() -> Interpreter:
    return Interpreter()


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
