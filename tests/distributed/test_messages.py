"""Messages keep their memory, over gloo and over a CCL table, in two ranks."""

from __future__ import annotations

MODULES = ("checks_messages",)
RANKS = 2


def test_in_two_ranks(failures: dict[str, list[str]], check: str) -> None:
    assert "\n".join(failures[check]) == ""
