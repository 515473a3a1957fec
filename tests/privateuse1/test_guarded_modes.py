"""The tests of views and copies once more, in memory that faults where host code may not touch it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = [str(HERE / name) for name in ("test_views.py", "test_copies.py", "test_generator.py")]


@pytest.mark.parametrize("mode", ["TEFL_SIM_CHECKED", "TEFL_SIM_OPAQUE"])
def test_views_copies_and_random_numbers_are_right_in_guarded_memory_too(mode):
    ours = ("TEFL_", "TE_FL_", "PYTEST_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *FILES],
        env={**inherited, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TEFL_LOG_LEVEL": "ERROR", mode: "1"},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
