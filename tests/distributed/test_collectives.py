"""Every collective gives, on the device, what PyTorch computes on the CPU: over gloo and over a CCL table."""

from __future__ import annotations

MODULES = ("checks_collectives", "checks_tensors", "checks_sparse", "checks_groups")
RANKS = 4


def test_in_four_ranks(failures: dict[str, list[str]], check: str) -> None:
    assert "\n".join(failures[check]) == ""
