"""Python in a process of its own, for tests: what it inherits, and how long it may take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OURS = ("TE_FL_", "TEFL_")

Result = subprocess.CompletedProcess[str]


def raised(stderr: str) -> str:
    """The exception that ended a process: the last line but for the notes of who ran."""
    return [line for line in stderr.splitlines() if line.strip() and not line.startswith("tefl: while ")][-1]


def environment(
    *folders: Path, without: tuple[str, ...] = (), autoload: bool = False, **variables: str
) -> dict[str, str]:
    """Return this process's environment without our settings and those that begin with ``without``.

    These folders and this clone come first on the import path. ``import torch`` claims no device unless
    ``autoload``. ``variables`` come last.
    """
    removed = (*OURS, "TORCH_DEVICE_BACKEND_AUTOLOAD", *without)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    path = [*map(str, folders), str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    quiet = {} if autoload else {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return {**kept, **quiet, "PYTHONPATH": os.pathsep.join(path), **variables}


def run_python(*arguments: str | Path, env: dict[str, str], timeout: float = 120) -> Result:
    """Run this interpreter; TimeoutExpired where it takes longer than so many seconds."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
