"""What tests of collectives and the processes that they start share: the environment, and names of checks."""

from __future__ import annotations

import os
import re
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


def checks_of(module: str) -> list[str]:
    """The names of a module's checks, from its text: a test process need not import it."""
    return re.findall(r"^def (check_\w+)", (HERE / f"{module}.py").read_text(), re.M)
