"""Data-parallel training on the device: over gloo and over a CCL table, in four ranks."""

from __future__ import annotations

MODULES = ("checks_training",)
RANKS = 4


def test_in_four_ranks(failures: dict[str, list[str]], check: str) -> None:
    assert "\n".join(failures[check]) == ""
