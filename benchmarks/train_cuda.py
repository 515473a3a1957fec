"""Train the demo model under both names of an NVIDIA GPU and compare losses and step times.

    python benchmarks/train_cuda.py --json FILE [--steps 300]

`cuda` alone, without tefl's device, and `maca` on the cuda provider take turns in processes of their own. A
name's step time is the median over the second half of its steps, the best of its runs. Wanted: losses within
1e-3 of each other at every step, step times within 3%. Exit status 1 if either is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from facts import now, versions

ROOT = Path(__file__).parent.parent
LOSS_LIMIT, TIME_LIMIT = 1e-3, 1.03
RUNS = 3


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


def step_ms(run: dict[str, Any]) -> float:
    """Return the median time of a step once everything is warm."""
    seconds = run["seconds"]
    return 1000 * statistics.median(seconds[len(seconds) // 2 :])


def compare(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the largest difference of a step's losses, both step times and their ratio."""
    plain, ours = runs["cuda"], runs["maca"]
    times = {name: min(map(step_ms, some)) for name, some in runs.items()}
    gaps = [abs(a - b) for a, b in zip(plain[0]["train"], ours[0]["train"], strict=True)]
    return {
        "largest_loss_difference": max(gaps),
        "final_loss": {name: some[0]["train"][-1] for name, some in runs.items()},
        "step_ms": times,
        "step_ratio": times["maca"] / times["cuda"],
        "all_step_ms": {name: [step_ms(run) for run in some] for name, some in runs.items()},
        "implementations": {name: some[0]["implementations"] for name, some in runs.items()},
    }


def main() -> None:
    """Train, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file to write the results to")
    parser.add_argument("--steps", type=int, default=300, help="steps a run (300)")
    arguments = parser.parse_args()
    steps = ["--steps", str(arguments.steps), "--eval-every", str(arguments.steps)]
    runs: dict[str, list[dict[str, Any]]] = {"cuda": [], "maca": []}
    for _ in range(RUNS):
        for device, some in runs.items():
            some.append(train(device, steps))
    facts = {
        "date": now(),
        "gpu": torch.cuda.get_device_name(),
        **versions(),
        "steps": arguments.steps,
        "limits": {"loss": LOSS_LIMIT, "step_ratio": TIME_LIMIT},
        **compare(runs),
    }
    arguments.json.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"losses differ by at most {facts['largest_loss_difference']:.2e} (limit {LOSS_LIMIT})")
    print(f"step: {facts['step_ms']} ms, ratio {facts['step_ratio']:.3f} (limit {TIME_LIMIT})")
    sys.exit(facts["largest_loss_difference"] > LOSS_LIMIT or facts["step_ratio"] > TIME_LIMIT)


if __name__ == "__main__":
    main()
