"""The two ways to average gradients over ranks, as communication hooks for DistributedDataParallel.

In the collective: one AVG, and no scaling before. Else each rank divides by the number of ranks, and one SUM
adds up. Both give the same gradients, up to rounding.
"""

# No annotations from __future__: torch compares a hook's with its own types, and they would be text.
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

__all__ = ["Averaging", "all_reduce_hook", "bfloat16_hook", "check_choice", "float16_hook"]


def check_choice(function: str, average_in_collective: object) -> None:
    """Raise TypeError, in the name of `function`, unless its `average_in_collective` is a bool."""
    if not isinstance(average_in_collective, bool):
        raise TypeError(f"{function}: average_in_collective is {average_in_collective!r}, want True or False")


class Averaging(NamedTuple):
    """How the ranks of `group` (None: all) average: in the collective, or by a division of each before it."""

    group: dist.ProcessGroup | None = None
    in_collective: bool = True

    def start(self, tensor: Tensor) -> Future[Tensor]:
        """Average `tensor`, of any shape and a float dtype, in place over the ranks; a future of it."""
        group = self.group if self.group is not None else dist.group.WORLD
        if not self.in_collective:
            tensor.div_(dist.get_world_size(group))
        op = dist.ReduceOp.AVG if self.in_collective else dist.ReduceOp.SUM
        work = dist.all_reduce(tensor, op=op, group=group, async_op=True)
        future: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


def all_reduce_hook(state: Averaging, bucket: GradBucket) -> Future[Tensor]:
    """Average the gradients of `bucket` in their own dtype."""
    return state.start(bucket.buffer())


def _compressed(dtype: torch.dtype, state: Averaging, bucket: GradBucket) -> Future[Tensor]:
    buffer = bucket.buffer()
    return state.start(buffer.to(dtype)).then(lambda done: buffer.copy_(done.value()))


def float16_hook(state: Averaging, bucket: GradBucket) -> Future[Tensor]:
    """Average the gradients of `bucket` in float16; the result is of their own dtype."""
    return _compressed(torch.float16, state, bucket)


def bfloat16_hook(state: Averaging, bucket: GradBucket) -> Future[Tensor]:
    """Average the gradients of `bucket` in bfloat16; the result is of their own dtype."""
    return _compressed(torch.bfloat16, state, bucket)
