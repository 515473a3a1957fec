"""Collectives are in stream order: over gloo and over a CCL table, in two ranks whose streams are held up."""

from __future__ import annotations

MODULES = ("checks_order",)
RANKS = 2


def test_in_two_ranks(failures: dict[str, list[str]], check: str) -> None:
    assert "\n".join(failures[check]) == ""
