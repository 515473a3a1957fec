"""A checkpoint of 4 ranks loads in 2 and 1, and back in 4; a run whose rank is killed resumes from its."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import EXAMPLES, environment

World = Callable[..., dict[str, list[str]]]

NAMES = ("whole", "broken")
WAIT = 240  # seconds until a run counts as hanging


@pytest.mark.parametrize("beneath", ["gloo", "table"])
def test_training_goes_on_in_another_number_of_ranks(
    world: World, providers: dict[str, str], tmp_path: Path, beneath: str
) -> None:
    failures = world("checks_checkpoint", providers[beneath], 4, 2, 1, 4, CHECKPOINTS=str(tmp_path))
    assert "\n".join(text for texts in failures.values() for text in texts) == ""


TINY = "--batch 4 --dim 32 --layers 1 --heads 2 --context 32 --sample 0 --eval-every 1000".split()  # noqa: SIM905


def train_command(out: Path, *more: str) -> list[str]:
    where = ["--device", "maca", "--out", str(out), "--losses", str(out / "losses.json")]
    return [str(EXAMPLES / "train_lm.py"), *where, *TINY, *more]


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def test_a_restarted_rank_resumes_from_the_checkpoint(providers: dict[str, str], tmp_path: Path) -> None:
    env = environment(
        TEFL_PROVIDER=providers["table"], TEFL_DEVICE_NAME="maca", TORCH_DEVICE_BACKEND_AUTOLOAD="1"
    )
    (tmp_path / "whole").mkdir(), (tmp_path / "broken").mkdir()
    steps = ["--steps", "12"]
    whole = [sys.executable, *train_command(tmp_path / "whole", *steps)]
    done = subprocess.run(whole, env=env, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr

    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    elastic = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    options = ["--fsdp", "--checkpoints", str(checkpoints), "--save-every", "3"]
    command = [sys.executable, *elastic, *train_command(tmp_path / "broken", *steps, *options)]
    log = tmp_path / "log"
    with open(log, "w") as output, subprocess.Popen(command, env=env, stdout=output, stderr=output) as run:
        try:
            kill_a_rank(run, checkpoints / "step-3")
            assert run.wait(WAIT) == 0, log.read_text()
        finally:
            run.terminate()
    unbroken, resumed = (json.loads((tmp_path / name / "losses.json").read_text()) for name in NAMES)
    assert resumed["train"] == pytest.approx(unbroken["train"], rel=1e-4)
    assert log.read_text().count("resuming from") == 1  # only the first rank says so


def kill_a_rank(run: subprocess.Popen[bytes], when: Path) -> None:
    """Kill one of the ranks once the checkpoint `when` is there."""
    deadline = time.monotonic() + WAIT
    while not when.exists():
        assert run.poll() is None, "the run ended before it saved anything"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(children_of(run.pid)[-1], signal.SIGKILL)
