"""benchmarks/gpu_report.py: what of many checks is kept."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    return importlib.import_module("benchmarks.gpu_report")


def finding(report: ModuleType, case: str, error: float, dtypes: str = "float32/float32"):
    return report.Finding("vendor.cuda", case, dtypes, "rmsnorm_fwd", "out", error, 4e-6)


def test_of_the_cases_that_differ_in_shape_alone_the_worst_is_kept_and_the_others_counted(report) -> None:
    findings = [finding(report, "1x64", 1e-7), finding(report, "1x65", 3e-7), finding(report, "1x66", 2e-7)]
    (summary,) = report.summarise(findings)
    assert (summary.cases, summary.error, summary.tolerance, summary.case) == (3, 3e-7, 4e-6, "1x65")


def test_each_pair_of_dtypes_has_a_summary_of_its_own(report) -> None:
    findings = [finding(report, "1x64", 1e-7), finding(report, "1x64", 2e-3, "bfloat16/float32")]
    assert [(s.dtypes, s.cases) for s in report.summarise(findings)] == [
        ("float32/float32", 1),
        ("bfloat16/float32", 1),
    ]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_result_that_is_no_number_is_the_worst_wherever_it_stands(report, position: int) -> None:
    findings = [finding(report, "1x64", 1e-7), finding(report, "1x65", 3e-3)]
    findings.insert(position, finding(report, "1x66", math.nan))
    (summary,) = report.summarise(findings)
    assert summary.case == "1x66"
    assert not findings[position].right
