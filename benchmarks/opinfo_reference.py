"""What OpInfo's samples give on plain CUDA: computed in a process of its own, in which no device is claimed.

PyTorch takes a claimed device for the one accelerator, so that a backward on plain CUDA is not what it is
alone. Seeds make the samples those of the device, which draws from CUDA's generators.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

Wanted = list[Any]
"""One entry a sample: (result, gradients) on the CPU, or None where the reference fails too."""


def alias_of_provider() -> str:
    """Return the alias device of the provider that TEFL_PROVIDER chooses."""
    return "cuda" if os.environ.get("TEFL_PROVIDER") == "cuda" else "cpu"


class Reference:
    """Asks the process; starts it anew where an operator ended it."""

    def __init__(self, dtype: torch.dtype, fraction: float) -> None:
        self._command = [sys.executable, __file__, str(dtype).removeprefix("torch."), str(fraction)]
        self._file = Path(tempfile.mkdtemp(prefix="opinfo")) / "wanted"
        self._process: subprocess.Popen[str] | None = None

    def results(self, name: str) -> Wanted | None:
        """Return what the samples of the operator `name` give; None if they cannot be made or end it."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps([name, str(self._file)]), file=process.stdin, flush=True)
        if process.stdout.readline().strip() != "done":
            return None
        wanted: Wanted | None = torch.load(self._file, weights_only=False)
        return wanted

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            env = {name: value for name, value in os.environ.items() if not name.startswith("TEFL_")}
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=env | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            )
        return self._process


def compute(op: Any, dtype: torch.dtype, fraction: float) -> Wanted | None:
    """Run an operator's samples on CUDA."""
    from opinfo_compare import as_leaf
    from opinfo_operators import outcome, samples_of

    try:
        samples = samples_of(op, "cuda", dtype, fraction, "cuda")
    except Exception:  # noqa: BLE001 - whatever it is, it is not the device's
        return None
    arguments = [tree_map(as_leaf, (sample.input, sample.args, sample.kwargs)) for sample in samples]
    return [tree_map(to_host, outcome(op, given)) for given in arguments]


def to_host(value: Any) -> Any:
    """Return a tensor's values on the CPU, anything else as it is."""
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def main() -> None:
    from opinfo_operators import by_name

    warnings.simplefilter("ignore")
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an operator prints is not an answer
    dtype, fraction = getattr(torch, sys.argv[1]), float(sys.argv[2])
    for line in sys.stdin:
        name, file = json.loads(line)
        torch.save(compute(by_name()[name], dtype, fraction), file)
        print("done", file=report)


if __name__ == "__main__":
    main()
