"""benchmarks/opinfo_cuda.py: what it counts, tried with sim beside the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "opinfo_cuda.py"


@pytest.fixture
def run(fresh_python, tmp_path: Path):
    """A function that compares sim with the CPU, and returns the counts for float32."""

    def compare(*ops: str, fails: bool = False) -> dict:
        file = tmp_path / "counts.json"
        arguments = ["--plain", "cpu", "--provider", "sim", "--dtype", "float32", "--sample-fraction", "0.2"]
        fresh_python(
            args=[str(SCRIPT), *arguments, "--jobs", "1", "--json", str(file), "--ops", *ops],
            timeout=300,
            fails=fails,
        )
        return json.loads(file.read_text())["dtypes"]["float32"]

    return compare


def test_results_gradients_and_random_numbers_of_both_names_are_compared(run) -> None:
    counts = run("add", "matmul", "nn.functional.dropout", "empty", "to_sparse")
    assert (counts["ops"], counts["failed"], counts["failures"], counts["listed"]) == (5, 0, {}, 1)
    assert counts["passed"] == counts["samples"] - 1 >= 8


def test_a_difference_in_place_or_value_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import argparse

    import torch

    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.delitem(sys.modules, "opinfo_cuda", raising=False)
    from opinfo_cuda import compare, judge

    options = argparse.Namespace(plain="cuda")
    right = (["cuda"], (torch.ones(2), []))
    assert compare("add", right, (["maca"], (torch.ones(2), [])), options) is None
    assert compare("add", right, (["cpu"], (torch.ones(2), [])), options) == "results are on ['cpu']"
    assert "not close" in str(compare("add", right, (["maca"], (torch.zeros(2), [])), options))
    assert compare("empty", right, (["maca"], (torch.zeros(2), [])), options) is None
    assert compare("add", right, "ValueError: no", options) == "ValueError: no"
    counts, errors = judge("add", "float32", [right, "fails"], ["ValueError: no", "fails"], options)
    assert (dict(counts), errors) == ({"failed": 1, "skipped": 1}, ["ValueError: no"])
    assert judge("add", "float32", [right], "the process ended with -11", options)[0]["failed"] == 1
