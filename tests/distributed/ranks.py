"""The environment of the processes that tests of collectives start."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
EXAMPLES = ROOT / "examples"


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without our settings, one thread a process, and `variables`."""
    ours = ("TE_FL_", "TEFL_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return {**kept, **fixed, **variables}
