"""What tests of collectives and their processes share: the environment, names of checks, a C compiler."""

from __future__ import annotations

import os
import re
import subprocess
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


def compiled(source: str, output: Path, *flags: str) -> str:
    """Compile a C file of this folder that uses the provider's header; return the output's path."""
    include = f"-I{ROOT / 'csrc' / 'include'}"
    command = ["gcc", "-Wall", "-Wextra", include, *flags, "-o", str(output), str(HERE / source), "-ldl"]
    subprocess.run(command, check=True)
    return str(output)
