"""The check of a provider's collectives at start-up, TEFL_CCL_CHECK: each fault of a library is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MODULES = ("checks_self_check",)

Failures = dict[str, list[str]]


@pytest.fixture(scope="module")
def failures(world: Callable[..., Failures], wrong_library: Path) -> Failures:
    return world("checks_self_check", str(wrong_library), 3, WRONG=str(wrong_library))


def test_on_a_library_with_one_fault(failures: Failures, check: str) -> None:
    assert "\n".join(failures[check]) == ""
