"""Runs a module's checks in several ranks: `python world.py MODULE --sizes 4 --provider sim --out FOLDER`.

torch is imported once, then the ranks are forked. Each runs the functions `check_*` of the module in order
and writes FOLDER/WORLD/RANK.json: name -> "" or a traceback. Several sizes are several worlds, one after
another; WORLD counts them. Only the ranks use the device. BENEATH, if set, says what is beneath the process
group: gloo, a CCL table, or nccl, with a GPU for each rank where there are enough.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

HERE = Path(__file__).parent
TIMEOUT = timedelta(seconds=60)  # of a collective; a machine under load is slow, a hang is for ever


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--provider", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=240)
    options = parser.parse_args()
    claim(options.provider)
    sys.path.insert(0, str(HERE))
    module = importlib.import_module(options.module)
    for number, size in enumerate(options.sizes):
        folder = options.out / str(number)
        folder.mkdir()
        ranks = [fork(partial(run, rank, size, folder, module)) for rank in range(size)]
        if status := wait(ranks, options.timeout):
            return status
    return 0


def claim(provider: str) -> None:
    from tefl.privateuse1 import PrivateUse1Backend, register_backend

    register_backend(PrivateUse1Backend("maca", provider, default_autocast_dtype=torch.bfloat16))


def fork(work: Callable[[], None]) -> int:
    """Do `work` in a process of its own, whose status is 0 where it ends well; return its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001  the parent sees the status, and reads the rest
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(rank: int, size: int, folder: Path, module: object) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), WORLD=folder.name)
    # Has torch renew its pool of threads after the fork, which two of its threads at once cannot.
    torch.set_num_threads(1)
    if os.environ.get("BENEATH") == "nccl":
        take_gpu(rank, size)
    method = f"file://{folder.resolve()}/store"
    dist.init_process_group(init_method=method, rank=rank, world_size=size, timeout=TIMEOUT)
    results = {}
    for name, check in list(vars(module).items()):
        if name.startswith("check_"):
            try:
                check(rank, size)
                results[name] = ""
            except (Exception, pytest.fail.Exception):  # noqa: BLE001  the test of this name shows it
                results[name] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def take_gpu(rank: int, size: int) -> None:
    """Give this rank a GPU, of its own where there are as many as ranks."""
    count = torch.maca.device_count()
    torch.maca.set_device(rank % count)
    if count < size:  # NCCL lets ranks share a GPU where it takes each for a host of its own
        os.environ["NCCL_HOSTID"] = str(rank)


def wait(ranks: list[int], seconds: float, *, together: bool = True) -> int:
    """Return 0 if all ranks ended well; kills those left after `seconds`, or `together` once one failed."""
    deadline, failed, left = time.monotonic() + seconds, 0, set(ranks)
    while left and time.monotonic() < deadline and not (failed and together):
        for rank in list(left):
            pid, status = os.waitpid(rank, os.WNOHANG)
            if pid:
                left.remove(rank)
                failed = failed or status
        time.sleep(0.01)
    for rank in left:
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
