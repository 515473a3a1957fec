"""Works and their futures: what they wait for, and for how long."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

LONG = timedelta(seconds=60)  # what takes so long hangs
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16)


def store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def check_tensors_of_one_coalesced_reduction_may_have_several_dtypes(rank: int, size: int) -> None:
    if os.environ["BENEATH"] == "gloo":
        return  # which refuses them
    tensors = [torch.arange(4, device="maca").to(dtype) for dtype in DTYPES]
    wanted = [dtype_sum(torch.arange(4).to(dtype), size) for dtype in DTYPES]
    with dist._coalescing_manager(device=torch.device("maca", 0)):
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, sum_ in zip(tensors, wanted, strict=True):
        torch.testing.assert_close(tensor.cpu(), sum_, rtol=0, atol=0)


def dtype_sum(tensor: torch.Tensor, size: int) -> torch.Tensor:
    return torch.stack([tensor] * size).sum(0).to(tensor.dtype)


def check_the_future_of_several_messages_is_behind_all_of_them(rank: int, size: int) -> None:
    received, sent = torch.zeros(4, device="maca"), torch.full((4,), 7.0, device="maca")
    if rank == 1:
        store().wait(["asked"], LONG)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, received, rank ^ 1), dist.P2POp(dist.isend, sent, rank ^ 1)]
    )
    futures = [work.get_future() for work in works]
    if rank == 0:
        store().set("asked", "")
    for future in futures:
        future.wait()
    assert received.tolist() == [7.0] * 4
    for work in works:
        work.wait()


def check_a_wait_with_a_time_out_ends_though_another_one_waits(rank: int, size: int) -> None:
    if rank == 1:
        store().wait(["timed out"], LONG)
        return dist.send(torch.ones(4, device="maca"), 0)
    received = torch.zeros(4, device="maca")
    work = dist.irecv(received, 1)
    future = work.get_future()  # over gloo a thread waits for it
    time.sleep(0.2)  # for that thread to do so; without it the check is weaker, not wrong
    with pytest.raises(dist.DistBackendError, match="not done after the 500 ms that wait"):
        work.wait(timedelta(milliseconds=500))
    store().set("timed out", "")
    future.wait()
    assert received.tolist() == [1.0] * 4


def check_the_outputs_of_coalesced_gathers_are_like_their_inputs(rank: int, size: int) -> None:
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("maca"))
    inputs = [torch.ones(2, device="maca"), torch.ones(3, device="maca")]
    options = dist.distributed_c10d.AllgatherOptions()
    for wrong in (torch.zeros(3, dtype=torch.float64, device="maca"), torch.zeros(2, device="maca")):
        outputs = [[torch.zeros(2, device="maca"), wrong] for _ in range(size)]
        with pytest.raises(ValueError, match="all_gather_coalesced: got outputs of"):
            backend.allgather_coalesced(outputs, inputs, options)
    dist.all_reduce(tensor := torch.ones(2, device="maca"))  # nothing of it was counted or sent
    assert tensor.tolist() == [size] * 2
