"""The training script under torchrun: several ranks have the losses of a single process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_lm.py"
OPTIONS = "--steps 8 --batch 8 --dim 32 --layers 2 --heads 2 --context 32 --sample 4".split()  # noqa: SIM905
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


def run(run_python: RunPython, out: Path, launcher: list[str], *options: str) -> dict[str, Any]:
    """Train; return what the first rank wrote down."""
    where = ["--device", "maca", "--out", out, "--losses", out / "losses.json"]
    done = run_python(*launcher, SCRIPT, *where, *OPTIONS, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "losses.json").read_text())


def test_four_ranks_have_the_losses_of_a_single_process(run_python: RunPython, tmp_path: Path) -> None:
    single = run(run_python, tmp_path, [])
    for options in (["--ddp"], ["--fsdp", "--sum-gradients"]):
        several = run(run_python, tmp_path, TORCHRUN, *options)
        assert several["train"] == pytest.approx(single["train"], rel=1e-4), options
        assert several["held_out"] == pytest.approx(single["held_out"], rel=1e-4), options


def test_a_batch_that_cannot_be_shared_is_an_error(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python(*TORCHRUN[:-1], "2", SCRIPT, "--device", "maca", "--ddp", *OPTIONS, "--batch", "3")
    assert done.returncode != 0
    assert "--batch 3 cannot be shared evenly by 2 ranks: give a multiple of 2" in done.stderr
