"""benchmarks/step_turns.py: what its figures are of, tried with sim beside the CPU."""

from __future__ import annotations

import json
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "step_turns.py"


def test_each_pair_of_processes_has_its_ratio_and_so_have_two_plain_ones(
    fresh_python, tmp_path: Path
) -> None:
    file = tmp_path / "turns.json"
    fresh_python(args=[str(SCRIPT), "--pairs", "1", "--turns", "3", "--json", str(file)], timeout=300)
    (figure,) = json.loads(file.read_text())["figures"]
    assert set(figure["step_ms"]) == {"cpu", "maca"}
    assert min(figure["step_ms"].values()) > 0
    assert figure["ratio_of_each_pair"] == [figure["ratio"]]
    assert figure["interval"][0] <= figure["ratio"] <= figure["interval"][1]
    assert len(figure["noise_of_each_pair"]) == 1


def test_ranks_take_their_turns_together(fresh_python, tmp_path: Path) -> None:
    file = tmp_path / "turns.json"
    options = ["--pairs", "1", "--turns", "2", "--how", "ddp", "--ranks", "2", "--json", str(file)]
    fresh_python(args=[str(SCRIPT), *options], timeout=300)
    (figure,) = json.loads(file.read_text())["figures"]
    assert (figure["how"], figure["ranks"]) == ("ddp", 2)
    assert min(figure["step_ms"].values()) > 0


def test_a_process_that_cannot_train_ends_the_comparison_with_its_command(fresh_python) -> None:
    done = fresh_python(args=[str(SCRIPT), "--names", "cpu", "cuda:99"], timeout=300, fails=True)
    assert "--work cuda:99 --provider sim --sizes tiny --how alone: ended with status 1" in done.stderr
