"""benchmarks/opinfo.py: what it counts, and that a crash is a counted failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "opinfo.py"


@pytest.fixture
def opinfo(fresh_python):
    """A function that runs the script with arguments and returns what it printed."""

    def run(*arguments: str, **environment: str) -> str:
        done = fresh_python.start([str(SCRIPT), *arguments], **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_operators_are_compared_with_the_cpu_and_failures_are_named(opinfo, tmp_path):
    out = tmp_path / "out.json"
    ops = ["add", "matmul", "nn.functional.conv2d", "cumsum", "index_put", "to_sparse"]
    text = opinfo("--sample-fraction", "0.3", "--json", str(out), "--ops", *ops)
    facts = json.loads(out.read_text())
    assert list(facts["failures"]) == ["to_sparse"]
    assert (facts["ops_passed"], facts["failed"]) == (5, 1)
    assert facts["passed"] == facts["samples"] - 1 >= 15
    assert f"{facts['passed']} of {facts['samples']} samples pass ({facts['rate']:.2%})" in text
    assert "to_sparse: 1 failed, first: NotImplementedError: maca: aten::_to_sparse" in text


def test_an_operator_that_ends_the_process_costs_itself_only(opinfo, tmp_path):
    (tmp_path / "crash.py").write_text(
        "import os, torch\n"
        "library = torch.library.Library('aten', 'IMPL')\n"
        "library.impl('sinc', lambda x: os.kill(os.getpid(), 11), 'PrivateUse1')\n"
    )
    text = opinfo("--import", "crash", "--ops", "sin", "sinc", "cos", PYTHONPATH=str(tmp_path))
    assert "sinc: 1 failed, first: the process ended with -11" in text
    assert "2 of 3 operators in full" in text
