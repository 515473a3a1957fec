"""Several devices, threads and groups at once, and groups that end: values are PyTorch's, from the CPU."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from checks_collectives import everyone, given, same

OVER_NCCL = os.environ["BENEATH"] == "nccl"
"""What is made at first use, communicators, kernels, a stream's memory, may wait for the whole GPU there, so
for another communicator's kernel, and that for a rank which waits the other way round: it is made before
threads."""


def check_each_device_of_a_process(rank: int, size: int) -> None:
    count, first = torch.maca.device_count(), rank if OVER_NCCL else 0  # one rank a GPU
    devices = [f"maca:{(first + index) % count}" for index in range(min(2, count))]
    tensors = [given(rank, 4).to(device) for device in devices]
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()
    for tensor in tensors:
        same(tensor, everyone(size, 4).sum(0))
    if count == 1:  # a machine of one GPU
        return
    one, another = devices
    with pytest.raises(ValueError, match=f"got tensors on {one} and on {another}"):
        dist.all_gather([torch.zeros(4, device=one) for _ in range(size)], tensors[1])


def check_threads_with_groups_and_streams_of_their_own(rank: int, size: int) -> None:
    groups, device = [dist.new_group(list(range(size))) for _ in range(2)], torch.maca.current_device()
    streams = [torch.Stream(device="maca") for _ in range(2)]

    def work(number: int) -> bool:
        right = True
        torch.maca.set_device(device)  # a thread begins on the first
        with streams[number]:
            for turn in range(20):
                tensor = torch.full((100 + number,), float(rank + turn), device="maca")
                dist.all_reduce(tensor, group=groups[number])
                right &= tensor.cpu().eq(sum(range(size)) + size * turn).all().item()
        return right

    if OVER_NCCL:
        assert [work(number) for number in range(2)] == [True, True]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, range(2))) == [True, True]


def check_threads_that_send_and_receive_in_one_group(rank: int, size: int) -> None:
    mine, output = given(rank, 1000).to("maca"), torch.zeros(1000, device="maca")
    send = partial(dist.send, mine, (rank + 1) % size)
    receive = partial(dist.recv, output, (rank - 1) % size)
    if OVER_NCCL:
        for part in (receive, send) if rank % 2 else (send, receive):
            part()
            torch.maca.synchronize()
        output.zero_()
    with ThreadPoolExecutor(2) as threads:
        sent = threads.submit(send)
        threads.submit(receive).result()
        sent.result()
    same(output, given((rank - 1) % size, 1000))


def check_groups_made_in_odd_orders(rank: int, size: int) -> None:
    backwards, middle, alone = dist.new_group([size - 1, 0]), dist.new_group([1, 2]), dist.new_group([1])
    ranks = {backwards: (0, size - 1), middle: (1, 2), alone: (1,)}
    for group, members in ranks.items() if rank % 2 else reversed(ranks.items()):
        if rank in members:
            tensor = torch.full((3,), float(rank), device="maca")
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [sum(members)] * 3


def check_options_are_those_of_what_is_beneath(rank: int, size: int) -> None:
    with pytest.raises(TypeError, match=r"pg_options: got builtins.str; 'tefl' over .* takes "):
        dist.new_group(pg_options="fast")
    if OVER_NCCL:
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)  # see test_group_options.py
        dist.all_reduce(tensor := torch.ones(2, device="maca"), group=dist.new_group(pg_options=options))
        assert tensor.tolist() == [size] * 2


def check_work_may_be_waited_for_again_and_by_several_threads(rank: int, size: int) -> None:
    tensor, output = torch.ones(4, device="maca"), torch.zeros(1, device="maca")
    works = [
        dist.all_reduce(tensor, async_op=True),
        dist.reduce_scatter_tensor(output, torch.ones(size, device="maca"), async_op=True),
    ]
    for work in works:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda _, work=work: work.wait(), range(3)))
        work.wait(timedelta(seconds=60))
        assert work.is_completed()
    assert tensor.tolist() == [size] * 4
    assert output.tolist() == [size]


def check_a_group_may_go_while_its_work_is_under_way(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    tensors = [torch.ones(1 << 18, device="maca") for _ in range(3)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    dist.destroy_process_group(group)
    del group
    for work in works:
        work.wait()
    assert all(tensor.eq(size).all().item() for tensor in tensors)


def check_an_aborted_group_refuses_calls(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    dist.all_reduce(torch.ones(2, device="maca"), group=group)
    torch.maca.synchronize()
    dist.barrier()  # an abort ends what other ranks have not done
    backend = group._get_backend(torch.device("maca"))
    for _ in range(2):
        backend.abort()
    with pytest.raises(dist.DistBackendError, match="failed before: the process group was aborted"):
        dist.all_reduce(torch.ones(2, device="maca"), group=group)
