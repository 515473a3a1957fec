"""What a check on a GPU found, summed up: the worst case of each implementation, op, result and dtypes."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.facts import now

__all__ = ["Finding", "Summary", "facts", "summarise"]


@dataclass(frozen=True)
class Finding:
    """One result of one op: `error` is the largest ||got - expected|| / ||expected|| of any row."""

    implementation: str
    case: str
    dtypes: str
    """Of input and weight, "bfloat16/float32"; empty where a check has dtypes of its own."""
    op: str
    result: str
    error: float
    tolerance: float

    @property
    def right(self) -> bool:
        return self.error <= self.tolerance  # False for NaN


@dataclass(frozen=True)
class Summary:
    """Findings that differ in the case alone: how many there are, and the worst of them."""

    implementation: str
    op: str
    result: str
    dtypes: str
    cases: int
    error: float
    tolerance: float
    case: str

    def __str__(self) -> str:
        return (
            f"{self.implementation:15} {self.op:16} {self.result:13} {self.dtypes:17} worst "
            f"{self.error:.1e} of {self.tolerance:.0e} in {self.cases} at {self.case}"
        )


def summarise(findings: Iterable[Finding]) -> list[Summary]:
    """One summary an implementation, op, result and dtypes, which share a tolerance."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for f in findings:
        groups.setdefault((f.implementation, f.op, f.result, f.dtypes), []).append(f)
    return [_summary(key, group) for key, group in groups.items()]


def _summary(key: tuple[str, str, str, str], group: list[Finding]) -> Summary:
    worst = max(group, key=lambda f: math.inf if math.isnan(f.error) else f.error)
    return Summary(*key, len(group), worst.error, worst.tolerance, worst.case)


def facts() -> dict[str, Any]:
    """The machine, the versions and the time of a run."""
    import triton

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver[0] if driver else None,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "date": now(),
    }
