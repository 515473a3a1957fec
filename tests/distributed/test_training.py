"""Data-parallel training on the device: over gloo and over a CCL table, in four ranks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from ranks import HERE

CHECKS = re.findall(r"^def (check_\w+)", (HERE / "checks_training.py").read_text(), re.M)

Failures = dict[str, list[str]]


@pytest.fixture(scope="module", params=["gloo", "table"])
def failures(
    request: pytest.FixtureRequest, world: Callable[..., Failures], providers: dict[str, str]
) -> Failures:
    return world("checks_training", providers[request.param], 4)


@pytest.mark.parametrize("check", CHECKS)
def test_in_four_ranks(failures: Failures, check: str) -> None:
    assert "\n".join(failures[check]) == ""
