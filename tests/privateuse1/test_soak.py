"""A short run of `benchmarks/soak.py`: mixed operations from several threads with faults injected."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from soak import FAULTS  # noqa: E402

RUN = f"""
import json, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import soak
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend("maca", "sim"))
print("\\n" + json.dumps(soak.soak(operations=4000, threads=8, seed=7)))
"""


@pytest.mark.parametrize(
    "mode", [{}, {"TEFL_SIM_CHECKED": "1"}, {"TEFL_SIM_OPAQUE": "1"}], ids=["plain", "checked", "opaque"]
)
def test_no_write_is_lost_and_all_memory_comes_back(python, mode):
    out = python(RUN, timeout=240, TEFL_SIM_FAULTS=FAULTS, TEFL_LOG_LEVEL="ERROR", **mode)
    seen = json.loads(out.splitlines()[-1])
    assert seen["wrong"] == []
    assert seen["operations"] == 4000
    assert seen["failures"]["AcceleratorError"] + seen["failures"]["RuntimeError"] > 5
    assert seen["after"] == seen["before"]
