"""torch's fully_shard (FSDP2) with a choice of how gradients are averaged."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import fully_shard as torch_fully_shard

__all__ = ["fully_shard"]


def fully_shard(module: nn.Module, *, average_in_collective: bool = True, **kwargs: Any) -> FSDPModule:
    """Shard `module` by `torch.distributed.fsdp.fully_shard`, which takes `kwargs`.

    average_in_collective: True, gradients are averaged by the reduce-scatter, an AVG (float32 and bfloat16;
    torch divides float16 before and after a SUM). False: the collectives are SUMs, and torch divides apart.
    """
    sharded: FSDPModule = torch_fully_shard(module, **kwargs)
    sharded.set_force_sum_reduction_for_comms(not average_in_collective)
    return sharded
