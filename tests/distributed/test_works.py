"""Works, their futures and their ends: over gloo and over a CCL table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ranks import HERE, environment

MODULES = ("checks_works",)
RANKS = 2


def test_in_two_ranks(failures: dict[str, list[str]], check: str) -> None:
    assert "\n".join(failures[check]) == ""


BEGIN = """
import gc, sys, threading, time, torch, torch.distributed as dist
from datetime import timedelta
sys.path.insert(0, {here!r})
from checks_order import hold_by_kernel
from tefl import _native
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend("maca", "sim"))
x, y = torch.ones(3, device="maca"), torch.ones(3, device="maca")
"""

FUTURE = """
class Slow(dist.Store):
    asked = threading.Event()
    def check(self, keys):
        self.asked.set()
        time.sleep(0.8)  # while the work is told why it failed
        return False
slow, inner = Slow(), dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout=timedelta(seconds=60))
backend = _native.load().ccl.alias_backend(inner, slow, timedelta(seconds=60))
let_go = hold_by_kernel()
work = backend.allreduce([x], dist.distributed_c10d.AllreduceOptions())
backend.abort()
let_go()
assert Slow.asked.wait(60)
try:
    work.get_future().wait()
except Exception as error:
    print(str(error).splitlines()[0])
"""

GROUPS = """
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
first, second = dist.new_group([0]), dist.new_group([0])
gone = threading.Event()
class Last:
    def __del__(self):
        gone.set()
let_first = hold_by_kernel()
with torch.Stream(device="maca"):
    let_second = hold_by_kernel()
    later = dist.all_reduce(y, group=second, async_op=True)
x.group = second
dist.all_reduce(x, group=first, async_op=True)
first._get_backend(x.device).abort()  # so that the queue's thread is the last to hold x
dist.destroy_process_group(second)
del second
x.last = Last()
del x
gc.collect()
let_first()
time.sleep(0.5)  # for the thread to wait for the second group; without it the test is weaker, not wrong
let_second()
later.wait()
print(gone.wait(60))
"""


def run(program: str, sim_kernels: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN.format(here=str(HERE)) + program],
        env=environment(SIM_KERNELS=str(sim_kernels)),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_future_asked_for_while_a_work_fails_has_its_error(sim_kernels: Path) -> None:
    (line,) = run(FUTURE, sim_kernels)
    assert "the process group was aborted" in line


def test_a_thread_that_lets_go_of_a_group_may_wait_for_its_threads(sim_kernels: Path) -> None:
    assert run(GROUPS, sim_kernels) == ["True"]
