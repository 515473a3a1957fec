"""Programs and groups may end with work that nobody has waited for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ranks import HERE, environment

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


LAST_REFERENCE = """
import gc, sys, threading, torch, torch.distributed as dist
sys.path.insert(0, {here!r})
from checks_order import hold_by_kernel
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend("maca", "sim"))
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
group = dist.new_group([0])
kept, x = torch.ones(2, device="maca"), torch.ones(3, device="maca")
gone = threading.Event()
class Last:
    def __del__(self):
        gone.set()
let_go = hold_by_kernel()
x.group, x.last = group, Last()
dist.all_reduce(x, group=group, async_op=True)
later = dist.all_reduce(kept, group=group, async_op=True)
group._get_backend(x.device).abort()  # so that the queue's thread is the last to hold x
dist.destroy_process_group(group)
del x, group
gc.collect()
print(gone.is_set())
let_go()
print(gone.wait(60))
try:
    later.wait()
except dist.DistBackendError as error:
    print(str(error).splitlines()[0])
"""


def test_a_group_may_go_with_a_call_that_waits_to_begin(sim_kernels: Path) -> None:
    """Its last reference is then dropped by the thread that begins calls, which is the group's own."""
    done = subprocess.run(
        [sys.executable, "-c", LAST_REFERENCE.format(here=str(HERE))],
        env=environment(SIM_KERNELS=str(sim_kernels)),
        capture_output=True,
        text=True,
        timeout=180,
    )
    call = "maca: all_reduce #2 of 2 x Float on rank 0 of 1: "
    lines = ["False", "True", call + "the process group was destroyed before the call began"]
    assert (done.returncode, done.stdout.splitlines()) == (0, lines), done.stderr
