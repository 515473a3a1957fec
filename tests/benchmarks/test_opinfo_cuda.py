"""benchmarks/opinfo_cuda.py: what it counts, tried with sim beside the CPU."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "opinfo_cuda.py"


def test_results_gradients_and_random_numbers_of_both_names_are_compared(
    fresh_python, tmp_path: Path
) -> None:
    file = tmp_path / "counts.json"
    sides = ["--plain", "cpu", "--provider", "sim", "--dtype", "float32", "--sample-fraction", "0.2"]
    ops = ["add", "matmul", "nn.functional.dropout", "empty", "sparse.sampled_addmm"]
    fresh_python(args=[str(SCRIPT), *sides, "--jobs", "2", "--json", str(file), "--ops", *ops], timeout=300)
    facts = json.loads(file.read_text())
    counts = facts["dtypes"]["float32"]
    assert (counts["ops"], counts["failed"], counts["failures"]) == (5, 0, {})
    assert counts["listed"] >= 1
    assert counts["passed"] == counts["samples"] - counts["listed"] >= 8
    assert (counts["ops_not_run"], facts["gave_up"]) == ([], [])


#: Stands for the recording process: an operator's name says what becomes of it.
RECORDER = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--folder") + 1])
for line in sys.stdin.read().splitlines():
    print(line, flush=True)
    if "crash" in line:
        os.kill(os.getpid(), 11)
    while "hang" in line:
        time.sleep(1)
    (folder / line.replace(" ", "-")).touch()
    if "lost" in line:
        os._exit(3)
"""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A function that has tasks of float32 recorded; returns why it gave up, and what was said of whom."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import torch
    from opinfo_record import record_all

    def run(*names: str, script: str = RECORDER, limit: float = 300, op_timeout: float = 300):
        (tmp_path / "recorder.py").write_text(script)
        (folder := tmp_path / "folder").mkdir()
        options = argparse.Namespace(
            script=tmp_path / "recorder.py", plain="cpu", provider="sim", sample_fraction=1.0, module=None,
            deadline=time.monotonic() + limit, op_timeout=op_timeout,
        )  # fmt: skip
        why = record_all([("float32", name) for name in names], "cpu", folder, options)
        files = {file.name.partition("-")[2]: file for file in folder.glob("float32-*")}
        return why, {name: torch.load(file) if file.stat().st_size else "" for name, file in files.items()}

    return run


def test_an_operator_that_crashes_hangs_or_loses_the_gpu_costs_itself_only(recorded) -> None:
    why, said = recorded("sin", "crash", "lost", "hang", "cos", op_timeout=5)
    assert why is None
    assert said == {
        "sin": "",
        "crash": "the process ended with -11",
        "lost": "",
        "hang": "the process ended with -9",
        "cos": "",
    }


def test_what_the_time_does_not_suffice_for_is_not_recorded(recorded) -> None:
    assert recorded("hang", "sin", limit=3) == (None, {})


def test_a_process_that_cannot_start_says_why(recorded) -> None:
    why, said = recorded("sin", script="raise ImportError('no such module')")
    assert "ended with 1" in why
    assert "no such module" in why
    assert said == {}


def test_a_difference_in_place_or_value_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.delitem(sys.modules, "opinfo_cuda", raising=False)
    from opinfo_cuda import compare, judge
    from opinfo_record import Result

    options = argparse.Namespace(plain="cuda")
    right, wrong = Result(["cuda"], (torch.ones(2), []), True), Result(["maca"], (torch.zeros(2), []), True)
    elsewhere = right._replace(places=["cpu"])
    assert compare("add", right, right._replace(places=["maca"]), options) is None
    assert compare("add", right, elsewhere, options) == "results are on ['cpu']"
    assert "not close" in str(compare("add", right, wrong, options))
    assert compare("empty", right, wrong, options) is None
    assert compare("add", right, "ValueError: no", options) == "ValueError: no"
    counts, errors = judge("add", "float32", [right, "fails"], ["ValueError: no", "fails"], options)
    assert (dict(counts), errors) == ({"failed": 1, "skipped": 1}, ["ValueError: no"])
    assert judge("add", "float32", [right], "the process ended with -11", options)[0]["failed"] == 1
    loose = right._replace(repeatable=False)
    assert judge("add", "float32", [right, loose], [wrong, wrong], options)[0] == {
        "failed": 1,
        "unrepeatable": 1,
    }
    assert judge("add", "float32", [loose], [elsewhere], options)[0] == {"failed": 1}


def test_a_result_that_torch_warns_is_not_repeatable_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from opinfo_record import outcome_of

    sample = argparse.Namespace(input=torch.zeros(3), args=(), kwargs={})
    index = torch.tensor([0, 0])
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        exact = outcome_of(lambda x: x + 1, sample, "cpu", "cpu")
        loose = outcome_of(lambda x: x.put_(index, torch.ones(2)), sample, "cpu", "cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    assert (exact.repeatable, loose.repeatable) == (True, False)
