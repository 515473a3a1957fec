"""Over NCCL, on as many GPUs as there are, one too: `--provider cuda`."""

from __future__ import annotations

import pytest

RANKS = {
    "checks_collectives": (2, 4),
    "checks_tensors": (2, 4),
    "checks_sparse": (2, 4),
    "checks_groups": (4,),
    "checks_messages": (2,),
    "checks_training": (2, 4),
}
MODULES = tuple(RANKS)


@pytest.mark.parametrize("failures", ["nccl"], indirect=True)
def test_in_several_ranks(failures: dict[str, list[str]], check: str) -> None:
    assert "\n".join(failures[check]) == ""
