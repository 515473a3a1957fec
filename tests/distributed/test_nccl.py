"""Collectives, messages and training over NCCL, with a GPU for each of two ranks: `--provider cuda`."""

from __future__ import annotations

import pytest

MODULES = ("checks_collectives", "checks_sparse", "checks_messages", "checks_training")
RANKS = 2


@pytest.mark.parametrize("failures", ["nccl"], indirect=True)
def test_in_two_ranks(failures: dict[str, list[str]], check: str) -> None:
    assert "\n".join(failures[check]) == ""
