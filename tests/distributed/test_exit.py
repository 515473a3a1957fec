"""A program may end with work that nobody has waited for: over gloo and over a CCL table, in two ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ranks import environment

PROGRAM = """
import os, sys, torch, torch.distributed as dist
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend("maca", {provider!r}))
rank = 1 if os.fork() else 0
dist.init_process_group(init_method="file://{store}", rank=rank, world_size=2)
dist.all_reduce(torch.ones(3, device="maca"))
for _ in range(3):
    dist.all_reduce(torch.ones(100_000, device="maca"), async_op=True)
dist.reduce_scatter_tensor(torch.zeros(2, device="maca"), torch.ones(4, device="maca"), async_op=True)
work = dist.all_gather_into_tensor(torch.zeros(4, device="maca"), torch.ones(2, device="maca"), async_op=True)
{last}
if rank:
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("last", ["pass", "dist.destroy_process_group()"])
@pytest.mark.parametrize("beneath", ["gloo", "table"])
def test_work_left_at_the_end_of_a_program(
    providers: dict[str, str], tmp_path: Path, beneath: str, last: str
) -> None:
    program = PROGRAM.format(provider=providers[beneath], store=tmp_path / "store", last=last)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
