"""Every collective gives, on the device, what PyTorch computes on the CPU: over gloo and over a CCL table."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from ranks import HERE

MODULES = ("checks_collectives", "checks_tensors", "checks_groups")
CHECKS = [
    check
    for module in MODULES
    for check in re.findall(r"^def (check_\w+)", (HERE / f"{module}.py").read_text(), re.M)
]

Failures = dict[str, list[str]]


@pytest.fixture(scope="module", params=["gloo", "table"])
def failures(
    request: pytest.FixtureRequest, world: Callable[..., Failures], providers: dict[str, str]
) -> Failures:
    failures: Failures = {}
    for module in MODULES:
        failures |= world(module, providers[request.param], 4)
    return failures


@pytest.mark.parametrize("check", CHECKS)
def test_in_four_ranks(failures: Failures, check: str) -> None:
    assert "\n".join(failures[check]) == ""
