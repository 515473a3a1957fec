"""benchmarks/torch_distributed.py: it excuses the tests that failed in the recorded runs, and no others."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("torch_distributed")


@pytest.mark.parametrize("beneath", ["gloo", "table"])
def test_what_is_excused_is_what_failed_over_the_same_library(script: ModuleType, beneath: str) -> None:
    recorded = json.loads((BENCHMARKS / "results" / f"torch-distributed-{beneath}.json").read_text())
    names = [*recorded["fail"], *recorded["pass"]]
    excused = [name for name in names if script.known_reason(name, beneath == "table") is not None]
    assert excused == list(recorded["fail"])
