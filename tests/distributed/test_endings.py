"""Groups over a CCL table that end, fail or have a store that falls silent: nothing hangs, in two ranks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import compiled

MODULES = ("checks_endings",)

Failures = dict[str, list[str]]


@pytest.fixture(scope="module")
def failures(
    world: Callable[..., Failures], maca_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Failures:
    flags = ("-shared", "-fPIC", f"-DLIBRARY={json.dumps(str(maca_library))}")
    library = compiled("faulty_provider.c", tmp_path_factory.mktemp("faulty") / "libfaulty.so", *flags)
    return world("checks_endings", library, 2, FAULTY=library, BENEATH="table")


def test_in_two_ranks(failures: Failures, check: str) -> None:
    assert "\n".join(failures[check]) == ""


def test_the_example_aborts_work_of_a_destroyed_communicator_that_its_stream_has_not_come_to(
    maca_library: Path, tmp_path: Path
) -> None:
    program = compiled("destroyed_communicator.c", tmp_path / "program")
    done = subprocess.run([program, str(maca_library)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = sorted(done.stdout.splitlines())
    assert first.endswith("all_reduce #1 of 16 bytes on rank 0 of 2 failed: the communicator was destroyed")
    assert second.endswith("on rank 1 of 2 failed: rank 0 gave up: the communicator was destroyed")
