"""Sums over all ranks of tensors in coordinate form: values are those of dense tensors, added on the CPU."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks_collectives import same
from torch import Tensor, nn

from tefl.distributed import DistributedDataParallel

SHAPES = {"a vector": ((9,), 1), "a matrix": ((5, 4), 2), "rows": ((6, 3), 1), "planes": ((3, 4, 2), 2)}
"""Name -> sizes, and how many of the dimensions are sparse."""


def given(rank: int, sizes: tuple[int, ...], sparse_dim: int) -> Tensor:
    """A tensor of `rank` + 1 elements, one of which comes twice; of none on rank 1."""
    generator = torch.Generator().manual_seed(rank)
    count = 0 if rank == 1 else rank + 1
    indices = torch.stack([torch.randint(size, (count,), generator=generator) for size in sizes[:sparse_dim]])
    indices = torch.cat([indices, indices[:, :1]], 1)
    values = torch.randint(1, 9, (indices.size(1), *sizes[sparse_dim:]), generator=generator).float()
    return torch.sparse_coo_tensor(indices, values, sizes)


def check_all_reduce_of_tensors_in_coordinate_form(rank: int, size: int) -> None:
    for sizes, sparse_dim in SHAPES.values():
        wanted = sum(given(other, sizes, sparse_dim).to_dense() for other in range(size))
        for asynchronous in (False, True):
            tensor = given(rank, sizes, sparse_dim).to("maca")
            work = dist.all_reduce(tensor, async_op=asynchronous)
            if work is not None:
                assert work.wait()
                assert work.is_completed()
                assert work.result()[0] is tensor
            assert tensor.layout == torch.sparse_coo
            assert tensor.sparse_dim() == sparse_dim
            same(tensor.to_dense(), wanted)


def check_a_sparse_average_and_other_dtypes(rank: int, size: int) -> None:
    sizes, sparse_dim = SHAPES["rows"]
    wanted = sum(given(other, sizes, sparse_dim).to_dense() for other in range(size))
    for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.int16):
        tensor = given(rank, sizes, sparse_dim).to(dtype).to("maca")
        if dtype == torch.int16 and os.environ["BENEATH"] == "nccl":  # which moves no such numbers
            with pytest.raises(TypeError, match="not supported for NCCL process group: Short"):
                dist.all_reduce(tensor)
            continue
        dist.all_reduce(tensor)
        same(tensor.to_dense(), wanted.to(dtype))
    average = given(rank, sizes, sparse_dim).to("maca")
    dist.all_reduce(average, dist.ReduceOp.AVG)
    torch.testing.assert_close(average.to_dense().cpu(), wanted / size)


def check_a_sum_of_nothing(rank: int, size: int) -> None:
    tensor = torch.sparse_coo_tensor(size=(3, 4), device="maca")
    dist.all_reduce(tensor)
    assert tensor._nnz() == 0
    same(tensor.to_dense(), torch.zeros(3, 4))


def check_the_future_of_a_sparse_sum_holds_it_on_the_device(rank: int, size: int) -> None:
    sizes, sparse_dim = SHAPES["a matrix"]
    tensor = given(rank, sizes, sparse_dim).to("maca")
    future = dist.all_reduce(tensor, async_op=True).get_future()
    (found,) = future.then(lambda done: [2 * value for value in done.value()]).wait()
    same(found.to_dense(), 2 * sum(given(other, sizes, sparse_dim).to_dense() for other in range(size)))


def check_what_cannot_be_done_with_them_is_told(rank: int, size: int) -> None:
    sizes, sparse_dim = SHAPES["rows"]
    tensor = given(rank, sizes, sparse_dim).to("maca")
    with pytest.raises(ValueError, match=r"a sparse tensor to reduce by MAX; .* pass \.to_dense\(\)"):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    for refused in (lambda: dist.broadcast(tensor, 0), lambda: dist.all_gather([tensor] * size, tensor)):
        with pytest.raises((NotImplementedError, ValueError), match="parse"):
            refused()
    backend = dist.group.WORLD._get_backend(torch.device("maca"))
    backend._start_coalescing()
    with pytest.raises(ValueError, match="a sparse tensor in a group of calls"):
        dist.all_reduce(tensor)
    backend._end_coalescing()
    dist.all_reduce(ones := torch.ones(2, device="maca"))  # nothing of it was counted or sent
    same(ones, torch.full((2,), float(size)))


def words_of(rank: int) -> Tensor:
    return torch.randint(20, (4, 3), generator=torch.Generator().manual_seed(30 + rank))


def loss_of(net: nn.Module, words: Tensor) -> Tensor:
    return F.cross_entropy(net(words).flatten(0, 1), words.flatten())


def check_sparse_gradients_are_those_of_one_process(rank: int, size: int) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(20, 5, sparse=True), nn.Linear(5, 20))

    alone = model()
    loss_of(alone, torch.cat([words_of(other) for other in range(size)])).backward()
    for wrapped in (nn.parallel.DistributedDataParallel, DistributedDataParallel):
        ddp = wrapped(model().to("maca"))
        loss_of(ddp, words_of(rank).to("maca")).backward()
        for parameter, want in zip(ddp.parameters(), alone.parameters(), strict=True):
            assert parameter.grad.layout == want.grad.layout
            torch.testing.assert_close(parameter.grad.to_dense().cpu(), want.grad.to_dense())
