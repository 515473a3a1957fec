"""Train the demo model under both names of an NVIDIA GPU and compare losses and step times.

    python benchmarks/train_cuda.py --json FILE [--steps 300]

`cuda` alone, without tefl's device, and `maca` on the cuda provider train in processes of their own; their
steps are timed by step_turns.py, of the demo model, whose step is host time, and of a wider one, whose step
is the GPU's. Wanted: losses within 1e-3 of each other at every step, step times within 3%. Exit status 1 if
either is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from demo_step import SIZES
from facts import now, versions
from step_turns import Setting, compare, show

ROOT = Path(__file__).parent.parent
LOSS_LIMIT, TIME_LIMIT = 1e-3, 1.03
NAMES = ("cuda", "maca")
PROCESSES, TURNS = 12, 16


def train(device: str, arguments: list[str]) -> dict[str, Any]:
    """Train in a process of its own; return what examples/train_lm.py writes."""
    env = {**os.environ, "TEFL_PROVIDER": "none", "PYTHONPATH": str(ROOT)}
    if device != "cuda":
        env |= {"TEFL_PROVIDER": "cuda", "TEFL_DEVICE_NAME": device}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "losses.json")
        command = [sys.executable, str(ROOT / "examples" / "train_lm.py"), "--device", device]
        command += ["--sample", "1", "--out", folder, "--losses", str(report), *arguments]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        result: dict[str, Any] = json.loads(report.read_text())
        return result


def compare_losses(steps: int) -> dict[str, Any]:
    """Train once under each name; return the largest difference of a step's losses, and what ran."""
    arguments = ["--steps", str(steps), "--eval-every", str(steps)]
    runs = {name: train(name, arguments) for name in NAMES}
    plain, ours = (runs[name]["train"] for name in NAMES)
    return {
        "largest_loss_difference": max(abs(a - b) for a, b in zip(plain, ours, strict=True)),
        "final_loss": {name: run["train"][-1] for name, run in runs.items()},
        "implementations": {name: run["implementations"] for name, run in runs.items()},
    }


def main() -> None:
    """Train, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file to write the results to")
    parser.add_argument("--steps", type=int, default=300, help="steps of the run whose losses count (300)")
    parser.add_argument(
        "--sizes", nargs="+", default=["demo", "wide"], choices=SIZES, help="of the models timed"
    )
    arguments = parser.parse_args()
    facts: dict[str, Any] = {
        "date": now(),
        "gpu": torch.cuda.get_device_name(),
        **versions(),
        "steps": arguments.steps,
        "limits": {"loss": LOSS_LIMIT, "step_ratio": TIME_LIMIT},
        **compare_losses(arguments.steps),
        "step_times": [],
    }
    print(f"losses differ by at most {facts['largest_loss_difference']:.2e} (limit {LOSS_LIMIT})", flush=True)
    for size in arguments.sizes:
        facts["step_times"].append(compare(Setting(NAMES, "cuda", size), PROCESSES, TURNS))
        show(facts["step_times"][-1])
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")  # what there is, if the run is cut off
    slow = any(figure["ratio"] > TIME_LIMIT for figure in facts["step_times"])
    sys.exit(facts["largest_loss_difference"] > LOSS_LIMIT or slow)


if __name__ == "__main__":
    main()
