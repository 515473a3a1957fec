"""Collectives, messages and training over NCCL, with a GPU for each of two ranks: `--provider cuda`."""

from __future__ import annotations

import pytest
import torch

MODULES = ("checks_collectives", "checks_messages", "checks_training")
RANKS = 2


@pytest.fixture(scope="module")
def failures(request: pytest.FixtureRequest, world) -> dict[str, list[str]]:
    if request.config.getoption("--provider") != "cuda" or torch.cuda.device_count() < RANKS:
        pytest.skip("needs two NVIDIA GPUs and --provider cuda")
    found: dict[str, list[str]] = {}
    for module in MODULES:
        found |= world(module, "cuda", RANKS)
    return found


def test_in_two_ranks(failures: dict[str, list[str]], check: str) -> None:
    assert "\n".join(failures[check]) == ""
