"""Collectives are in stream order: over gloo and over a CCL table, in two ranks whose streams are held up."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import HERE

CHECKS = re.findall(r"^def (check_\w+)", (HERE / "checks_order.py").read_text(), re.M)

Failures = dict[str, list[str]]


@pytest.fixture(scope="module", params=["gloo", "table"])
def failures(
    request: pytest.FixtureRequest,
    world: Callable[..., Failures],
    providers: dict[str, str],
    sim_kernels: Path,
) -> Failures:
    return world("checks_order", providers[request.param], 2, SIM_KERNELS=str(sim_kernels))


@pytest.mark.parametrize("check", CHECKS)
def test_in_two_ranks(failures: Failures, check: str) -> None:
    assert "\n".join(failures[check]) == ""
