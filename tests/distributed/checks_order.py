"""A collective begins after what its stream holds, and the caller goes on: with streams that are held up.

Sim's streams are held by a kernel that waits for a flag (SIM_KERNELS names its library); those of the
provider with collectives of its own by a message that its peer has not sent yet.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import ROOT

COUNT = 1 << 12
LONG = timedelta(seconds=60)  # what takes so long hangs


def filled(value: float) -> torch.Tensor:
    return torch.full((COUNT,), float(value), device="maca")


def hold(rank: int) -> Callable[[], None]:
    """Hold this rank's current stream; all ranks must call it. Returns what lets it go."""
    return hold_by_message(rank) if os.environ["BENEATH"] == "table" else hold_by_kernel()


def hold_by_kernel() -> Callable[[], None]:
    sys.path.insert(0, str(ROOT / "tests" / "privateuse1"))
    from sim_driver import Kernels, Sim, pointer

    from tefl.privateuse1 import raw_stream

    kernels = Kernels(Sim(start=False), Path(os.environ["SIM_KERNELS"]).read_bytes(), 0)
    flag = ctypes.c_int32(0)
    kernels("gate", ctypes.c_void_p(raw_stream(0)), pointer(flag))
    return lambda: setattr(flag, "value", 1)


def hold_by_message(rank: int) -> Callable[[], None]:
    peer, token = rank ^ 1, torch.zeros(1, device="maca")
    dist.recv(token, src=peer)  # the stream waits for it, the program does not

    def let_go() -> None:
        with torch.Stream(device="maca"):
            dist.send(torch.ones(1, device="maca"), dst=peer)

    return let_go


def meet(place: str, rank: int, size: int) -> None:
    """Wait, by the store alone, until all ranks are at `place`, a name for this meeting alone."""
    store = dist.PrefixStore(place, dist.distributed_c10d._get_default_store())
    store.set(str(rank), "here")
    store.wait([str(other) for other in range(size)], LONG)


def check_a_collective_waits_for_the_stream_and_not_the_caller(rank: int, size: int) -> None:
    dist.all_reduce(filled(0))  # connections are made
    new, tensor = filled(rank + 1), filled(100)
    torch.maca.synchronize()
    let_go = hold(rank)
    tensor.copy_(new)  # behind what holds the stream
    work = dist.all_reduce(tensor, async_op=True)
    assert not work.is_completed()
    meet("held", rank, size)
    assert not work.is_completed()
    let_go()
    work.wait()
    assert tensor.eq(size * (size + 1) / 2).all().item()


def check_two_collectives_keep_their_order(rank: int, size: int) -> None:
    new, tensor, gathered = filled(rank), filled(100), torch.zeros(size * COUNT, device="maca")
    torch.maca.synchronize()
    let_go = hold(rank)
    tensor.copy_(new)
    works = [
        dist.all_reduce(tensor, async_op=True),
        dist.all_gather_into_tensor(gathered, new, async_op=True),
    ]
    meet("two collectives keep their order", rank, size)
    let_go()
    for work in works:
        work.wait()
    assert tensor.eq(size * (size - 1) / 2).all().item()
    assert gathered.view(size, COUNT).mean(1).tolist() == list(range(size))


def check_memory_of_a_tensor_nobody_keeps_lives_until_the_work_is_done(rank: int, size: int) -> None:
    output, new = torch.zeros(size * COUNT, device="maca"), filled(rank + 1)
    torch.maca.synchronize()
    let_go = hold(rank)
    temporary = torch.empty(COUNT, device="maca")
    temporary.copy_(new)
    work = dist.all_gather_into_tensor(output, temporary, async_op=True)
    del temporary
    other = torch.empty(COUNT, device="maca")  # would be the same memory
    other.copy_(new, non_blocking=True)
    let_go()
    other.fill_(-1)
    work.wait()
    assert output.view(size, COUNT).mean(1).tolist() == [other + 1 for other in range(size)]


def check_a_future_of_held_work_completes_with_its_result(rank: int, size: int) -> None:
    new, tensor = filled(rank + 1), filled(100)
    torch.maca.synchronize()
    let_go = hold(rank)
    tensor.copy_(new)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    let_go()
    assert future.wait()[0].eq(size * (size + 1) / 2).all().item()


def check_the_end_of_waiting_is_in_the_stream_that_waits(rank: int, size: int) -> None:
    """What is enqueued after wait() sees the result, on whatever stream that is."""
    new, tensor, seen = filled(rank + 1), filled(100), filled(0)
    torch.maca.synchronize()
    let_go = hold(rank)
    tensor.copy_(new)
    work = dist.all_reduce(tensor, async_op=True)
    let_go()
    side = torch.Stream(device="maca")
    with side:
        work.wait()
        seen.copy_(tensor)
        side.synchronize()
    assert seen.eq(size * (size + 1) / 2).all().item()
