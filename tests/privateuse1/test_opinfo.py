"""benchmarks/opinfo.py: what it counts, that a crash is a counted failure, and what the recorded runs say."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "opinfo.py"
sys.path.insert(0, str(SCRIPT.parent))

from opinfo_deviations import DEVIATIONS, ON_CUDA, deviation_of  # noqa: E402

CPU_NUMBERS = "the numbers are the CPU's; a GPU's are compared by benchmarks/opinfo_cuda.py"


@pytest.fixture
def opinfo(fresh_python):
    """A function that runs the script with arguments and returns what it printed."""

    def run(*arguments: str, status: int = 0, **environment: str) -> str:
        done = fresh_python.start([str(SCRIPT), *arguments], **environment)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    return run


def row(text: str, dtype: str) -> dict[str, str]:
    """Return the line of the printed table for `dtype`, by column."""
    lines = [line.split() for line in text.splitlines()]
    columns = next(line for line in lines if line[0] == "dtype")
    cells = [line for line in lines if line[0] == dtype][-1]  # those before tell failures
    return dict(zip(columns, cells, strict=True))


def test_operators_are_compared_with_the_cpu_and_listed_failures_are_counted_apart(opinfo, tmp_path):
    out = tmp_path / "out.json"
    ops = ["add", "matmul", "nn.functional.conv2d", "cumsum", "index_put", "sparse.sampled_addmm"]
    text = opinfo("--dtype", "float32", "--sample-fraction", "0.3", "--json", str(out), "--ops", *ops)
    counts = json.loads(out.read_text())["dtypes"]["float32"]
    assert (counts["failures"], counts["deviations"]) == ({}, {"sparse.sampled_addmm": 1})
    assert (counts["ops"], counts["ops_passed"], counts["listed"], counts["failed"]) == (6, 5, 1, 0)
    assert counts["passed"] == counts["samples"] - 1 >= 15
    told = row(text, "float32")
    assert (told["passed"], told["listed"], told["rate"]) == (
        str(counts["passed"]),
        "1",
        f"{counts['rate']:.2%}",
    )


def test_the_share_of_listed_samples_is_printed_and_too_large_a_one_fails_a_whole_run(opinfo):
    import opinfo as script

    text = opinfo("--dtype", "float32", "--ops", "sparse.sampled_addmm", "add")  # of two operators it may be
    assert re.search(r"^listed: 1 of \d+, \d\.\d{3}% \(at most 0\.3%\)$", text, re.MULTILINE)
    counts = {"bool": {"listed": 2, "samples": 500}, "int64": {"listed": 2, "samples": 700}}
    assert script.too_many_listed({"dtypes": counts, "only": []})
    assert not script.too_many_listed({"dtypes": counts, "only": ["add"]})
    assert not script.too_many_listed(
        {"dtypes": counts | {"int64": {"listed": 1, "samples": 700}}, "only": []}
    )


def test_each_dtype_has_a_line_of_the_operators_that_know_it(opinfo, tmp_path):
    out = tmp_path / "out.json"
    dtypes = ["bfloat16", "int64", "bool", "complex64"]
    text = opinfo(
        "--dtype", *dtypes, "--sample-fraction", "0.2", "--json", str(out), "--ops", "add", "angle", "tanh"
    )
    facts = json.loads(out.read_text())["dtypes"]
    assert list(facts) == dtypes
    assert {dtype: row(text, dtype)["failed"] for dtype in dtypes} == dict.fromkeys(dtypes, "0")
    assert all(facts[dtype]["passed"] > 0 for dtype in dtypes)


def test_an_operator_that_ends_the_process_costs_itself_only_and_fails_the_run(opinfo, tmp_path):
    (tmp_path / "crash.py").write_text(
        "import os, torch\n"
        "library = torch.library.Library('aten', 'IMPL')\n"
        "library.impl('sinc', lambda x: os.kill(os.getpid(), 11), 'PrivateUse1')\n"
    )
    arguments = ["--dtype", "float32", "--import", "crash", "--ops", "sin", "sinc", "cos"]
    text = opinfo(*arguments, status=1, PYTHONPATH=str(tmp_path))
    assert "float32 sinc: 1 failed, first: the process ended with -11" in text
    assert (row(text, "float32")["ops"], row(text, "float32")["ops_passed"]) == ("3", "2")


@pytest.mark.usefixtures("maca")
def test_a_conjugated_sample_is_conjugated_on_the_cpu_too():
    from opinfo_compare import to_cpu

    x = torch.tensor([1 + 2j], device="maca")
    for lazy in (x.conj(), x.conj().imag):
        twin = to_cpu(lazy, "maca")
        assert twin.tolist() == lazy.tolist()
        assert (twin.is_conj(), twin.is_neg()) == (lazy.is_conj(), lazy.is_neg())


@pytest.mark.sim_only(CPU_NUMBERS)
@pytest.mark.parametrize(
    "name", ["nn.BatchNorm1d", "nn.LSTM", "nn.LazyConv2d", "nn.Transformer", "nn.CTCLoss"]
)
def test_modules_are_compared_forward_backward_and_in_their_state(name):
    from opinfo_modules import Modules

    result = Modules().check(name, "maca", torch.float32, 0.1)
    assert (result.errors, result.skipped) == ([], 0)
    assert result.passed >= 1


@pytest.mark.sim_only(CPU_NUMBERS)
@pytest.mark.parametrize(
    ("name", "least", "listed"), [("Adam", 40, 0), ("LBFGS", 2, 0), ("SparseAdam", 8, 0)]
)
def test_optimizers_are_compared_in_every_implementation(name, least, listed):
    from opinfo_optimizers import Optimizers

    result = Optimizers().check(name, "maca", torch.float32, 1.0)
    assert (result.errors, result.skipped, result.deviating) == ([], 0, listed)
    assert result.passed >= least


@pytest.mark.sim_only(CPU_NUMBERS)
def test_the_cpu_takes_the_algorithm_that_torch_chooses_on_the_device():
    from opinfo_choices import as_chosen_on, capturable_on_cpu

    options = torch.nn.LinearCrossEntropyOptions()
    chosen = as_chosen_on("maca", options)
    assert (chosen.acc_policy, chosen.chunking_method) == ("compact", "aspect_ratio:2")
    assert as_chosen_on("cpu", options).acc_policy == "accurate"
    outright = torch.nn.LinearCrossEntropyOptions(acc_policy="balanced", batch_chunk_size=2)
    assert as_chosen_on("maca", outright) is outright
    assert as_chosen_on("maca", 1.0) == 1.0
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    adam = torch.optim.Adam([parameter], capturable=True)
    with capturable_on_cpu():
        adam.step()
    with pytest.raises(AssertionError, match="supported devices"):
        adam.step()


@pytest.mark.usefixtures("maca")
def test_a_module_whose_state_differs_fails(monkeypatch):
    """A batch norm that forgets to count its batches on the device."""
    from opinfo_modules import Modules

    forward = torch.nn.BatchNorm1d.forward

    def forgetful(self, x):
        result = forward(self, x)
        if x.device.type == "maca" and self.num_batches_tracked is not None:
            self.num_batches_tracked.zero_()
        return result

    monkeypatch.setattr(torch.nn.BatchNorm1d, "forward", forgetful)
    result = Modules().check("nn.BatchNorm1d", "maca", torch.float32, 1.0)
    assert result.failed > 0
    assert result.passed > 0  # in evaluation, or without counts


def recorded(name: str) -> dict[str, Any]:
    """Return the counts by dtype of a run that `make results` writes anew: every sample, on sim."""
    return json.loads((SCRIPT.parent / "results" / f"{name}-maca.json").read_text())["dtypes"]


@pytest.mark.parametrize(("name", "least"), [("opinfo", 50_000), ("modules", 5_000), ("optimizers", 1_400)])
def test_the_recorded_runs_are_whole_and_have_no_failure_that_is_not_listed(name, least):
    counts = recorded(name).values()
    assert {str(c["failures"]) for c in counts} == {"{}"}
    assert sum(c["samples"] for c in counts) > least


@pytest.mark.parametrize("name", ["opinfo", "modules", "optimizers"])
def test_few_samples_of_a_recorded_run_are_listed(name):
    counts = recorded(name).values()
    samples, listed = (sum(c[key] for c in counts) for key in ("samples", "listed"))
    assert listed <= 0.003 * samples


def test_what_deviates_in_a_recorded_run_is_what_is_listed():
    counts = [c for name in ("opinfo", "modules", "optimizers") for c in recorded(name).values()]
    found = {op for c in counts for op in c["deviations"]}
    always = {entry.op for entry in DEVIATIONS if not entry.sometimes}
    assert always <= found <= {entry.op for entry in DEVIATIONS}


def test_every_listed_deviation_has_a_reason_and_a_place_in_torch():
    for entry in ON_CUDA:
        assert len(entry.reason) > 20
        assert any(place in entry.source for place in (".py", ".yaml", ".cpp", "pytorch/pytorch#"))
        dtype = (entry.dtypes or ("float32",))[0]
        assert deviation_of(entry.op, dtype, f"X: {entry.error}", ON_CUDA) == entry
    assert deviation_of("to_sparse", "float32", "AssertionError: Tensor-likes are not close!") is None
