"""benchmarks/spec_backend.py: how results and times of two sides are compared, and what is measured where."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    return importlib.import_module("benchmarks.spec_backend")


def test_results_are_the_same_by_their_bits(bench) -> None:
    zero = torch.zeros(2, 3)
    assert bench.compared({"case": [zero]}, {"case": [zero.clone()]})["same_bits"] == 1
    (apart,) = bench.compared({"case": [zero + 1]}, {"case": [zero + 1 - 2**-24]})["apart"]
    assert apart["units_in_the_last_place"] == 0.5  # below 1 float32 numbers are half as far apart as above
    nothing = bench.compared({"case": [torch.full((2,), math.nan)]}, {"case": [torch.full((2,), math.nan)]})
    assert nothing == {"results": 1, "same_bits": 1, "apart": []}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_difference_is_told_in_units_of_the_dtype_at_the_size_of_the_largest_value(bench, dtype) -> None:
    trunk = torch.tensor([4.0, 0.5], dtype=dtype)
    other = torch.tensor([4.0, 0.5 + 8 * torch.finfo(dtype).eps], dtype=dtype)
    (apart,) = bench.compared({"case": [trunk]}, {"case": [other]})["apart"]
    assert apart == {"case": "case", "result": 0, "units_in_the_last_place": 2.0}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_result_that_is_no_number_is_no_rounding(bench, value: float) -> None:
    bits = bench.compared({"case": [torch.ones(2)]}, {"case": [torch.tensor([1.0, value])]})
    assert not bench.is_rounding(bits)


def test_the_best_process_of_each_side_is_compared(bench) -> None:
    rounds = [({"a": 10.0}, {"a": 11.0}), ({"a": 20.0}, {"a": 20.0}), ({"a": 5.0}, {"a": 6.0})]
    assert bench.ratios(rounds) == {"a": {"ratio": 1.2, "trunk_us": 5.0, "backend_us": 6.0}}


def test_every_op_of_the_kernels_is_called_with_every_dtype(bench) -> None:
    norm = pytest.importorskip("tefl.kernels.triton.ops.norm", reason="Triton is optional")
    called = list(bench.calls("cpu"))
    assert {op for _, op, _ in called} == set(norm.__all__)
    assert len({case for case, _, _ in called}) == len(called)
    assert len(called) == len(norm.__all__) * len(bench.DTYPES) * len(bench.INTERPRETED)
