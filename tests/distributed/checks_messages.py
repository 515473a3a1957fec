"""Messages between two ranks: the memory of one that nobody keeps is not used anew before it is received."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from checks_order import meet

COUNT = 1 << 24  # elements, 64 MB: no library sends so many ahead

Message = Callable[[torch.Tensor, int], dist.Work]


def alone(tensor: torch.Tensor, rank: int) -> dist.Work:
    work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0)
    assert work is not None
    return work


def batched(tensor: torch.Tensor, rank: int) -> dist.Work:
    [work] = dist.batch_isend_irecv([dist.P2POp(dist.irecv if rank else dist.isend, tensor, 1 - rank)])
    return work


def check_a_message_whose_tensor_nobody_keeps(rank: int, size: int) -> None:
    exchange(alone, rank, size)


def check_a_batch_of_messages_whose_tensors_nobody_keeps(rank: int, size: int) -> None:
    exchange(batched, rank, size)


def check_messages_whose_works_nobody_keeps_either(rank: int, size: int) -> None:
    if os.environ["BENEATH"] == "gloo":
        return  # whose messages are made by waiting
    exchange(alone, rank, size, keeps_work=False)
    exchange(batched, rank, size, keeps_work=False)


def exchange(message: Message, rank: int, size: int, *, keeps_work: bool = True) -> None:
    """Send from 0 to 1, which begins to receive once the sender has let go and filled other memory."""
    place = f"{message.__name__}, {keeps_work}"
    connect(message, rank)
    if rank == 0:
        work = [message(torch.full((COUNT,), 7.0, device="maca"), rank)]
        if not keeps_work:
            work.clear()
        others = [torch.full((COUNT,), -1.0, device="maca") for _ in range(2)]  # one may be the same memory
        torch.accelerator.current_stream().synchronize()
        meet(place, rank, size)
        for kept in work:
            kept.wait()
        torch.accelerator.synchronize()
        assert all(other.eq(-1).all().item() for other in others)
    else:
        received = torch.zeros(COUNT, device="maca")
        meet(place, rank, size)
        message(received, rank).wait()
        assert received.eq(7).all().item()


def connect(message: Message, rank: int) -> None:
    """A library's first message waits for its peer."""
    message(torch.ones(1, device="maca"), rank).wait()
