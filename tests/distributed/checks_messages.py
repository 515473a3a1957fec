"""Messages between two ranks: memory that nobody keeps is not used anew before it is sent or received."""

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


def check_a_sent_tensor_that_nobody_keeps(rank: int, size: int) -> None:
    for message in (alone, batched):
        let_go_of_what_is_sent(message, rank, size)


def check_a_received_tensor_that_nobody_keeps(rank: int, size: int) -> None:
    for message in (alone, batched):
        let_go_of_what_is_received(message, rank, size)


def check_tensors_whose_works_nobody_keeps_either(rank: int, size: int) -> None:
    if os.environ["BENEATH"] == "gloo":
        return  # gloo sends and receives in wait() alone
    for message in (alone, batched):
        let_go_of_what_is_sent(message, rank, size, keeps_work=False)
        let_go_of_what_is_received(message, rank, size, keeps_work=False)


def check_the_future_of_a_message(rank: int, size: int) -> None:
    """What came is in it, under the device's name, for whoever waits for it or computes with it."""
    for message in (alone, batched):
        tensor = torch.full((COUNT >> 4,), 7.0 * (1 - rank), device="maca")
        work = message(tensor, rank)
        doubled = work.get_future().then(lambda done: [2 * value for value in done.value()])
        found = doubled.wait()
        if message is batched and os.environ["BENEATH"] == "nccl":
            assert found == []  # as over NCCL alone: a group of calls has no results
        elif rank == 1:
            assert found[0].device == tensor.device
            assert found[0].eq(14).all().item()
        work.wait()
        assert tensor.eq(7).all().item()


def let_go_of_what_is_sent(message: Message, rank: int, size: int, *, keeps_work: bool = True) -> None:
    """Rank 1 begins to receive once the sender has let go and filled other memory."""
    place = f"sent {message.__name__}, {keeps_work}"
    connect(message, rank)
    if rank == 0:
        work = [message(torch.full((COUNT,), 7.0, device="maca"), rank)]
        filled = fill_other_memory(work, keeps_work)
        meet(place, rank, size)
        end(work)
        del filled
    else:
        received = torch.zeros(COUNT, device="maca")
        meet(place, rank, size)
        message(received, rank).wait()
        assert received.eq(7).all().item()


def let_go_of_what_is_received(message: Message, rank: int, size: int, *, keeps_work: bool = True) -> None:
    """Rank 0 begins to send once the receiver has let go and filled other memory."""
    place = f"received {message.__name__}, {keeps_work}"
    connect(message, rank)
    if rank == 1:
        work = [message(torch.zeros(COUNT, device="maca"), rank)]
        filled = fill_other_memory(work, keeps_work)
        meet(place, rank, size)
        end(work)
        assert all(tensor.eq(-1).all().item() for tensor in filled)
    else:
        sent = torch.full((COUNT,), 7.0, device="maca")
        meet(place, rank, size)
        message(sent, rank).wait()


def fill_other_memory(work: list[dist.Work], keeps_work: bool) -> list[torch.Tensor]:
    """Return two tensors of -1, one of which would have the memory of what nobody keeps."""
    if not keeps_work:
        work.clear()
    filled = [torch.full((COUNT,), -1.0, device="maca") for _ in range(2)]
    torch.accelerator.current_stream().synchronize()
    return filled


def end(work: list[dist.Work]) -> None:
    for kept in work:
        kept.wait()
    torch.accelerator.synchronize()


def connect(message: Message, rank: int) -> None:
    """A library's first message waits for its peer."""
    message(torch.ones(1, device="maca"), rank).wait()
