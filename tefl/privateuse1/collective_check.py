"""The self-check of a device's collectives: every function on small numbers whose results are known.

Each column of a reduction has two ranks' numbers, 2 and -5 or so, and elsewhere what changes no result. So
every number is exact in every dtype and for any number of ranks; an average alone may round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.distributed import DistBackendError, ReduceOp

from tefl._log import logger
from tefl.privateuse1 import names

__all__ = ["check_collectives"]

DTYPES: Final = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int32, torch.int64),
)

REDUCTIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "SUM": lambda rows: rows.sum(0),
    "PRODUCT": lambda rows: rows.prod(0),
    "MIN": lambda rows: rows.amin(0),
    "MAX": lambda rows: rows.amax(0),
    "AVG": lambda rows: rows.mean(0),
}


class Result(NamedTuple):
    """What a collective gave this rank, on the CPU, and what is right."""

    function: str
    came: Tensor
    right: Tensor

    def is_right(self) -> bool:
        """Return whether they are equal; averages of floats up to their last bits."""
        if not self.function.endswith("AVG") or not self.came.is_floating_point():
            return torch.equal(self.came, self.right)
        return torch.allclose(self.came, self.right, rtol=8 * torch.finfo(self.came.dtype).eps, atol=0)


def check_collectives(backend: Any) -> None:
    """Try every collective on the current device; every rank of the group must call it.

    A reduction or dtype that the library refuses is passed over: that is no wrong result. Raises
    torch.distributed.DistBackendError, on the ranks that got something wrong and after the last collective,
    that quotes the function, the reduction, the dtype, what came and what is right.
    """
    wrong = [result for result in _results(backend) if not result.is_right()]
    if wrong:
        first, rank, size = wrong[0], backend.rank(), backend.size()
        others = ", ".join(dict.fromkeys(f"{result.function} of {result.came.dtype}" for result in wrong[1:]))
        raise DistBackendError(
            f"{first.function} of {first.came.dtype} over {size} ranks gave {first.came.tolist()} to rank "
            f"{rank}, right is {first.right.tolist()}: the collectives beneath the device "
            f"{names.claimed_name()!r} compute wrongly. {f'Wrong as well: {others}. ' if others else ''}"
            f"Report it to the provider's vendor, or unset TEFL_CCL_CHECK to go on regardless"
        )


def _results(backend: Any) -> Iterator[Result]:
    for name in REDUCTIONS:
        for dtype in DTYPES:
            for reduce in (_all_reduce, _reduce, _reduce_scatter):
                try:
                    yield reduce(backend, name, dtype)
                except DistBackendError as error:
                    # Refused, or the group is dead, which what moves data finds in the end.
                    logger().debug("TEFL_CCL_CHECK passes over a refused reduction: %s", error)
    for move in (_broadcast, _all_gather, _all_to_all, _messages):
        yield from move(backend)


# ----------------------------------------------------------------------------------------- reductions --


def _rows(name: str, size: int, dtype: torch.dtype) -> Tensor:
    """Return what each rank gives, (size, size): row r is rank r's. Averages have a remainder."""
    first, second = (2 * size, -5 * size - 1) if name == "AVG" else (2, -5)
    here = torch.eye(size, dtype=torch.bool)
    rows = torch.full((size, size), int(name == "PRODUCT"), dtype=dtype)
    return rows.masked_fill(here, first).masked_fill(here.roll(1, 0), second)


def _known(name: str, rows: Tensor) -> Tensor:
    exact = REDUCTIONS[name](rows.double())
    return (exact if rows.is_floating_point() else exact.trunc()).to(rows.dtype)


def _all_reduce(backend: Any, name: str, dtype: torch.dtype) -> Result:
    rows = _rows(name, backend.size(), dtype)
    options = torch.distributed.AllreduceOptions()
    options.reduceOp = getattr(ReduceOp, name)
    tensor = _on_device(rows[backend.rank()])
    backend.allreduce([tensor], options).wait()
    return Result(f"all_reduce, {name}", tensor.cpu(), _known(name, rows))


def _reduce(backend: Any, name: str, dtype: torch.dtype) -> Result:
    """To the last rank, which then tells all: so every rank sees what is wrong."""
    rows, root = _rows(name, backend.size(), dtype), backend.size() - 1
    options = torch.distributed.ReduceOptions()
    options.reduceOp, options.rootRank = getattr(ReduceOp, name), root
    tensor = _on_device(rows[backend.rank()])
    backend.reduce([tensor], options).wait()
    return Result(f"reduce, {name}", _told(backend, tensor, root), _known(name, rows))


def _reduce_scatter(backend: Any, name: str, dtype: torch.dtype) -> Result:
    rows, rank = _rows(name, backend.size(), dtype), backend.rank()
    options = torch.distributed.ReduceScatterOptions()
    options.reduceOp = getattr(ReduceOp, name)
    given = _on_device(rows[rank])
    part = torch.zeros_like(given[:1])
    backend._reduce_scatter_base(part, given, options).wait()
    return Result(f"reduce_scatter, {name}", part.cpu(), _known(name, rows)[rank : rank + 1])


# ------------------------------------------------------------------------------------- what moves data --


def _numbers(rank: int, size: int) -> Tensor:
    return torch.arange(size) + 1000 * (rank + 1)


def _broadcast(backend: Any) -> Iterator[Result]:
    rank, size = backend.rank(), backend.size()
    for root in sorted({0, size - 1}):
        came = _told(backend, _on_device(_numbers(rank, size)), root)
        yield Result(f"broadcast from rank {root}", came, _numbers(root, size))


def _told(backend: Any, tensor: Tensor, root: int) -> Tensor:
    options = torch.distributed.BroadcastOptions()
    options.rootRank = root
    backend.broadcast([tensor], options).wait()
    return tensor.cpu()


def _all_gather(backend: Any) -> Iterator[Result]:
    rank, size = backend.rank(), backend.size()
    right = torch.cat([_numbers(other, size) for other in range(size)])
    output = _on_device(torch.zeros_like(right))
    backend._allgather_base(output, _on_device(_numbers(rank, size))).wait()
    yield Result("all_gather", output.cpu(), right)


def _all_to_all(backend: Any) -> Iterator[Result]:
    rank, size = backend.rank(), backend.size()
    given = _on_device(_numbers(rank, size))
    output = torch.zeros_like(given)
    backend.alltoall_base(output, given, [], []).wait()
    yield Result("all_to_all", output.cpu(), torch.stack([_numbers(r, size)[rank] for r in range(size)]))


def _messages(backend: Any) -> Iterator[Result]:
    """Around a ring, to the next rank and from the one before."""
    rank, size = backend.rank(), backend.size()
    if size == 1:
        return
    before, given = (rank - 1) % size, _on_device(_numbers(rank, size))
    output = torch.zeros_like(given)
    backend._start_coalescing()
    backend.send([given], (rank + 1) % size, 0)
    backend.recv([output], before, 0)
    backend._end_coalescing().wait()
    yield Result(f"recv from rank {before}", output.cpu(), _numbers(before, size))


def _on_device(tensor: Tensor) -> Tensor:
    return tensor.to(str(names.claimed_name()))
