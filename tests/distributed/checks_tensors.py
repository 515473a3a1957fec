"""Collectives of unusual tensors and of wrong arguments: values are PyTorch's, computed on the CPU."""

from __future__ import annotations

import itertools
import os
import time

import pytest
import torch
import torch.distributed as dist
from checks_collectives import OPS, everyone, given, mean, same
from torch.testing._internal.two_tensor import TwoTensor

OVER_NCCL = os.environ["BENEATH"] == "nccl"
"""It refuses what is not contiguous, as the next check shows; checks of such tensors return at once there."""


def check_nccl_refuses_what_is_not_contiguous_as_on_cuda(rank: int, size: int) -> None:
    columns, rows = torch.ones(3, 2, device="maca").t(), torch.ones(2, 3, device="maca")
    for call in (
        lambda: dist.all_reduce(columns),
        lambda: dist.broadcast(columns, 0),
        lambda: dist.all_gather([rows] * size, columns),
        lambda: dist.reduce_scatter(columns, [rows] * size),
    ):
        if OVER_NCCL:
            with pytest.raises(ValueError, match="Tensors must be contiguous"):
                call()
        else:
            call()


def check_elements_of_transposed_tensors_keep_their_order(rank: int, size: int) -> None:
    if OVER_NCCL:
        return

    def laid_out(values: torch.Tensor) -> torch.Tensor:
        return values.t().contiguous().to("maca").t()  # the same values, columns first in memory

    mine, wanted = laid_out(given(rank, 2, 3)), everyone(size, 2, 3)
    outputs = [torch.zeros(2, 3, device="maca") for _ in range(size)]
    dist.all_gather(outputs, mine)
    same(torch.stack(outputs), wanted)
    dist.all_to_all([output.zero_() for output in outputs], [mine] * size)
    same(torch.stack(outputs), wanted)
    dist.gather(mine, [output.zero_() for output in outputs] if rank == 0 else None, dst=0)
    if rank == 0:
        same(torch.stack(outputs), wanted)
    whole = torch.zeros(size * 2, 3, device="maca")
    dist.all_gather_into_tensor(whole, mine)
    same(whole, wanted.flatten(0, 1))
    output = laid_out(torch.zeros(2, 3))
    dist.scatter(output, [laid_out(row) for row in wanted] if rank == 0 else None, src=0)
    same(output, wanted[rank])
    dist.reduce_scatter(output, [mine] * size)
    same(output, wanted.sum(0))


def check_reductions_and_broadcasts_of_transposed_tensors(rank: int, size: int) -> None:
    if OVER_NCCL:
        return
    tensor = given(rank, 3, 4).to("maca").t()
    dist.all_reduce(tensor)
    same(tensor, everyone(size, 3, 4).sum(0).t())
    dist.broadcast(tensor.copy_(given(rank, 3, 4).t()), src=1)
    same(tensor, given(1, 3, 4).t())


def check_all_gather_of_numbers_and_into_stacked_rows(rank: int, size: int) -> None:
    numbers = torch.zeros(size, device="maca")
    dist.all_gather_into_tensor(numbers, torch.tensor(float(rank), device="maca"))
    assert numbers.tolist() == list(range(size))
    rows = torch.zeros(size, 5, device="maca")
    dist.all_gather_into_tensor(rows, given(rank, 5).to("maca"))
    same(rows, everyone(size, 5))


def check_empty_tensors_of_every_collective(rank: int, size: int) -> None:
    def none(*shape: int) -> torch.Tensor:
        return torch.zeros(*(shape or (0,)), device="maca")

    def one_each() -> list[torch.Tensor]:
        return [none() for _ in range(size)]

    dist.broadcast(none(), 0), dist.reduce(none(), 1)
    dist.all_gather(one_each(), none()), dist.reduce_scatter(none(), one_each())
    dist.all_gather_into_tensor(none(), none()), dist.reduce_scatter_tensor(none(), none())
    dist.all_to_all(one_each(), one_each()), dist.all_to_all_single(none(0, 4), none(0, 4), [0] * size)
    dist.gather(none(), one_each() if rank == 1 else None, 1)
    dist.scatter(none(), one_each() if rank == 1 else None, 1)
    if rank < 2:
        (dist.send if rank == 0 else dist.recv)(none(), 1 - rank)


def check_arguments_that_cannot_be_right_are_told_before_anything_starts(rank: int, size: int) -> None:
    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, device="maca")

    many = [zeros(2) for _ in range(size)]
    op, premul = dist.ReduceOp, dist._make_nccl_premul_sum(0.5)
    for call, message in {
        lambda: dist.broadcast(zeros(2), size + 3): f"broadcast: the root is rank {size + 3}, wants one of 0",
        lambda: dist.reduce(zeros(2), size + 3): "reduce: the root is rank",
        lambda: dist.all_gather(
            many[1:], zeros(2)
        ): f"all_gather: got {size - 1} outputs, wants one for each",
        lambda: dist.all_gather(many, zeros(3)): "all_gather: got outputs of 2 x Float and of 3 x Float",
        lambda: dist.reduce_scatter(zeros(2), many[1:]): f"reduce_scatter: got {size - 1} inputs",
        lambda: dist.all_gather_into_tensor(zeros(3), zeros(2)): f"the output must have {size} times",
        lambda: dist.reduce_scatter_tensor(zeros(2), zeros(5)): f"the input must have {size} times",
        lambda: dist.all_to_all_single(zeros(size + 1), zeros(size)): "the output's first dimension of",
        lambda: dist.all_to_all_single(zeros(size), zeros(size), [2] * size): "got output_split_sizes",
        lambda: dist.send(zeros(2), size + 5): f"send: the peer is rank {size + 5}, wants another rank of 0",
        lambda: dist.recv(zeros(2), -3): "recv: the peer is rank -3, wants another rank of 0",
        lambda: dist.send(zeros(2, 3).t(), (rank + 1) % size): r"send: got a tensor .*pass \.contiguous\(\)",
        lambda: dist.all_reduce(zeros(2, dtype=torch.bool), op.AVG): "all_reduce: there is no AVG of Bool",
        lambda: dist.all_reduce(zeros(2, dtype=torch.int32), premul): "PREMUL_SUM multiplies by a fraction",
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
    dist.all_reduce(tensor := torch.ones(2, device="maca"))  # nothing of it was counted or sent
    assert tensor.tolist() == [size] * 2


def check_parts_of_different_sizes(rank: int, size: int) -> None:
    """NCCL moves them; what does not fit it does not see."""

    def parts() -> list[torch.Tensor]:
        return [given(rank, other + 1).to("maca") for other in range(size)]

    def gather(mine: torch.Tensor, outputs: list[torch.Tensor]) -> None:
        dist.all_gather([output.fill_(-1) for output in outputs], mine)
        for other, output in enumerate(outputs):
            same(output, given(other, other + 1))

    def scatter(mine: torch.Tensor, inputs: list[torch.Tensor]) -> None:
        dist.reduce_scatter(mine, inputs)
        same(mine, everyone(size, rank + 1).sum(0))

    for call, what in ((gather, "outputs"), (scatter, "inputs")):
        if not OVER_NCCL:
            with pytest.raises(ValueError, match=f"got {what} of 1 x Float and of 2 x Float; all must be al"):
                call(given(1, 2).to("maca"), parts())
            continue
        call(given(rank, rank + 1).to("maca"), parts())
        told = f"number {rank} of the {what} is of {rank + 1} x Float, wants {rank + 2} x Float"
        with pytest.raises(ValueError, match=told):
            call(given(0, rank + 2).to("maca"), parts())
    if OVER_NCCL:
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("maca"))
        with pytest.raises(ValueError, match="got outputs of 1 x Float and of 1 x Double; all must have one"):
            backend.allgather([parts()], [torch.zeros(1, dtype=torch.float64, device="maca")])
        columns = [torch.zeros(2, other + 2, device="maca").t() for other in range(size)]
        with pytest.raises(ValueError, match=r"all_gather: got a tensor of .*; pass \.contiguous\(\)"):
            dist.all_gather(columns, torch.zeros(rank + 2, 2, device="maca"))
        shorts = [torch.zeros(other + 1, dtype=torch.int16, device="maca") for other in range(size)]
        with pytest.raises(TypeError, match="not supported for NCCL process group: Short"):
            dist.all_gather(shorts, shorts[rank].clone())
        dist.all_reduce(tensor := torch.ones(2, device="maca"))  # no group of calls was left open
        assert tensor.tolist() == [size] * 2


def without_memory() -> dict[str, torch.Tensor]:
    """What an error says -> a tensor, of two elements, that no library can be given the memory of."""
    freed = torch.ones(2, device="maca")
    freed.untyped_storage().resize_(0)
    return {
        "a subclass that computes in Python": TwoTensor(torch.ones(2).to("maca"), torch.ones(2).to("maca")),
        "zeros that have no memory": torch._efficientzerotensor(2, device="maca"),
        "not strided but a nested one": torch.nested.nested_tensor([torch.ones(1)] * 2, device="maca"),
        "not strided but Sparse": torch.ones(2).to_sparse().to("maca"),
        "whose memory was given back": freed,
    }


def check_tensors_without_memory_are_refused_in_lists_too(rank: int, size: int) -> None:
    usual = torch.ones(2, device="maca")
    for told, tensor in without_memory().items():
        with pytest.raises(ValueError, match=f"reduce_scatter: got .*{told}"):
            dist.reduce_scatter(usual, [tensor] * size)
        with pytest.raises(ValueError, match=f"all_gather: got .*{told}"):
            dist.all_gather([usual] * (size - 1) + [tensor], usual)


def check_inference_mode_where_rank_0_comes_late(rank: int, size: int) -> None:
    """The first call of a form then begins on another thread, which is in no such mode."""
    with torch.inference_mode():
        mine, whole = torch.full((7,), float(rank), device="maca"), torch.empty(size, 7, device="maca")
        summed, outputs = mine.clone(), [torch.empty(7, device="maca") for _ in range(size)]
        calls = (
            lambda: dist.all_gather_into_tensor(whole, mine),
            lambda: dist.all_gather(outputs, mine),
            lambda: dist.all_reduce(summed, dist.ReduceOp.AVG),
            lambda: dist.all_to_all_single(torch.empty(size * 7, device="maca"), whole.flatten()),
        )
        for call in calls:
            if rank == 0:
                time.sleep(0.2)
            call()
        wanted = torch.arange(size).float()
        same(whole, wanted.unsqueeze(1).expand(size, 7))
        same(torch.stack(outputs), whole.cpu())
        same(summed, wanted.mean().expand(7))


def check_the_stride_of_a_single_element_is_of_no_account(rank: int, size: int) -> None:
    if OVER_NCCL:
        return
    memory = torch.arange(6.0, device="maca")
    dist.all_reduce(memory.as_strided((2, 1, 3), (1, 100 + rank, 2)))
    same(memory, size * torch.arange(6.0))


def check_rows_of_one_element_of_every_dtype(rank: int, size: int) -> None:
    """Contiguous with any strides."""
    for dtype in (torch.float32, torch.int8 if OVER_NCCL else torch.int16, torch.complex64):
        column = (torch.ones(1, 3, dtype=dtype) * rank).to("maca").t()
        outputs = [torch.empty(3, 1, dtype=dtype, device="maca") for _ in range(size)]
        dist.all_gather(outputs, column)
        same(torch.stack(outputs), torch.arange(size).view(size, 1, 1).expand(size, 3, 1).to(dtype))
        dist.broadcast(column, 1)
        same(column, torch.ones(3, 1, dtype=dtype))


def check_transposed_tensors_of_a_dtype_that_gloo_lacks(rank: int, size: int) -> None:
    x = torch.ones(3, 2, dtype=torch.int16, device="maca").t()
    outputs = [torch.empty(2, 3, dtype=torch.int16, device="maca") for _ in range(size)]
    if os.environ["BENEATH"] == "gloo":
        with pytest.raises(
            ValueError, match=r"all_gather: got Short with strides \[1, 2\]; .*: pass \.contiguous"
        ):
            dist.all_gather(outputs, x)
    elif not OVER_NCCL:
        dist.all_gather(outputs, x)
        same(torch.stack(outputs), torch.ones(size, 2, 3, dtype=torch.int16))


def check_integers_of_every_width_and_booleans(rank: int, size: int) -> None:
    for dtype, op in itertools.product((torch.int8, torch.uint8, torch.int32, torch.int64), OPS):
        values = torch.tensor([1, 2, 5]).add(rank % 2).to(dtype)
        tensor = values.to("maca")
        dist.all_reduce(tensor, op=op)
        everyones = [torch.tensor([1, 2, 5]).add(other % 2).to(dtype) for other in range(size)]
        same(tensor, OPS[op](torch.stack(everyones)))
    for op, wanted in {
        dist.ReduceOp.MAX: [True, True, False],
        dist.ReduceOp.MIN: [False, True, False],
    }.items():
        tensor = torch.tensor([rank == 1, True, False], device="maca")
        dist.all_reduce(tensor, op=op)
        assert tensor.tolist() == wanted


def check_complex_numbers(rank: int, size: int) -> None:
    given_to = torch.complex(given(rank, 4), given(rank + 1, 4))
    tensor = given_to.to("maca")
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    wanted = torch.complex(mean(everyone(size, 4)), mean(everyone(size + 1, 4)[1:]))
    same(tensor, wanted)
    dist.broadcast(tensor.copy_(given_to), src=1)
    same(tensor, torch.complex(given(1, 4), given(2, 4)))
