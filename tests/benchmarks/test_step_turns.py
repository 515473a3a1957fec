"""benchmarks/step_turns.py: what its figures are of, tried with sim beside the CPU."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "step_turns.py"


def test_the_ratio_is_of_the_medians_of_several_processes(fresh_python, tmp_path: Path) -> None:
    file = tmp_path / "turns.json"
    fresh_python(args=[str(SCRIPT), "--processes", "2", "--turns", "3", "--json", str(file)], timeout=300)
    (figure,) = json.loads(file.read_text())["figures"]
    plain, ours = figure["step_ms"]["cpu"], figure["step_ms"]["maca"]
    assert len(plain) == len(ours) == 2
    assert min(plain + ours) > 0
    assert figure["ratio"] == pytest.approx(sum(ours) / sum(plain))  # of two, the median is the mean
    assert figure["interval"][0] <= figure["ratio"] <= figure["interval"][1]


def test_ranks_take_their_turns_together(fresh_python, tmp_path: Path) -> None:
    file = tmp_path / "turns.json"
    options = ["--processes", "1", "--turns", "2", "--how", "ddp", "--ranks", "2", "--json", str(file)]
    fresh_python(args=[str(SCRIPT), *options], timeout=300)
    (figure,) = json.loads(file.read_text())["figures"]
    assert (figure["how"], figure["ranks"]) == ("ddp", 2)
    assert all(min(side) > 0 for side in figure["step_ms"].values())


def test_a_process_that_cannot_train_ends_the_comparison_with_its_command(fresh_python) -> None:
    done = fresh_python(args=[str(SCRIPT), "--names", "cpu", "cuda:99"], timeout=300, fails=True)
    assert "--work cuda:99 --provider sim --sizes tiny --how alone: ended with status 1" in done.stderr


def test_a_process_that_hangs_is_told_by_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    step_turns = importlib.import_module("step_turns")
    monkeypatch.setattr(step_turns, "LIMIT", 0.1)
    with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE, text=True) as process:
        with pytest.raises(RuntimeError, match=r"^sleep 600: no answer within 0 s, wanted the milliseconds"):
            step_turns.answer_of(process)
        process.kill()


def test_several_ranks_want_a_way_to_train(fresh_python) -> None:
    done = fresh_python(args=[str(SCRIPT), "--ranks", "2"], timeout=120, fails=True)
    assert "--ranks 2 with --how alone: several ranks want --how ddp or --how fsdp" in done.stderr
