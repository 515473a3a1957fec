"""What tests of every part share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .processes import Result, environment, run_python

# Before torch is imported: the tests claim devices themselves, whatever is installed.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--provider",
        choices=("sim", "cuda"),
        default="sim",
        help="the built-in provider of the device that tests/privateuse1 uses",
    )
    parser.addoption(
        "--ccl",
        type=Path,
        metavar="LIBRARY",
        help="a provider's library, whose CCL table tests/distributed uses in place of the example's",
    )


def pytest_configure(config: pytest.Config) -> None:
    library = config.getoption("--ccl")
    if library is not None and not library.is_file():
        raise pytest.UsageError(f"--ccl: got {library}, which is no file; wants a provider's library")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of a test run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one test worker at a time through."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file closes
        yield


RunPython = Callable[..., Result]


@pytest.fixture(scope="session")
def fresh_python() -> RunPython:
    """Run a snippet, or a file with arguments, in a fresh interpreter that has none of our variables set.

    ``fresh_python(code, TE_FL_STRICT="1", path=[folder])``: keywords are environment variables, ``path`` is
    put before the import path, ``args`` replaces ``-c code``. Unless ``fails``, an exit status that is not 0
    fails the test and shows what was written.
    """
    return _fresh_python


def _fresh_python(
    code: str = "", *, args: list[str] | None = None, path: list[Path] | None = None, fails: bool = False,
    timeout: float = 120, **variables: str,
) -> Result:  # fmt: skip
    env = environment(*(path or []), **variables)
    done = run_python(*(args or ["-c", textwrap.dedent(code)]), env=env, timeout=timeout)
    if (done.returncode != 0) != fails:
        pytest.fail(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done
