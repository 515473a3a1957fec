"""What tests of kernels share."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..conftest import RunPython
from .host_cuda import ROOT
from .interpreter import Interpreter
from .sim_op import PRELUDE

Sim = Callable[..., str]


@pytest.fixture(scope="session")
def interpreted() -> Iterator[Interpreter]:
    """Triton's implementations on the host: ``interpreted("rmsnorm_fwd", x, weight, 1e-5)``."""
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()


@pytest.fixture(scope="session")
def sim_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of sim_kernels.c, as a binary of the simulated device."""
    built = tmp_path_factory.mktemp("sim") / "kernels.so"
    source = Path(__file__).with_name("sim_kernels.c")
    include = ROOT / "csrc" / "providers" / "sim"
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", "-o", str(built), str(source)], check=True)
    return built


@pytest.fixture
def sim(fresh_python: RunPython, sim_library: Path) -> Sim:
    """Run code with the op ``both`` and its recipe (sim_op.py) on the devices maca:0 and maca:1."""

    def run(code: str, **variables: str) -> str:
        text = PRELUDE.format(library=str(sim_library)) + textwrap.dedent(code)
        return fresh_python(text, **variables).stdout

    return run
