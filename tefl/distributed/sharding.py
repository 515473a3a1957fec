"""torch's fully_shard (FSDP2) with a choice of how gradients are averaged."""

from __future__ import annotations

from typing import Any, overload

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import fully_shard as torch_fully_shard

from tefl.distributed.averaging import check_choice

__all__ = ["fully_shard"]


@overload
def fully_shard(module: nn.Module, *, average_in_collective: bool = ..., **kwargs: Any) -> FSDPModule: ...
@overload
def fully_shard(
    module: list[nn.Module], *, average_in_collective: bool = ..., **kwargs: Any
) -> list[FSDPModule]: ...
def fully_shard(
    module: nn.Module | list[nn.Module], *, average_in_collective: bool = True, **kwargs: Any
) -> Any:
    """Shard `module` by `torch.distributed.fsdp.fully_shard`, which takes `kwargs`, and return it.

    module: one, or a list of modules that communicate as one. It becomes an `FSDPModule` in place; of a list,
    each module that is no part of another one of it.
    average_in_collective: True, gradients are averaged by the reduce-scatter, an AVG (float32 and bfloat16;
    torch divides float16 before and after a SUM). False: the collectives are SUMs, and torch divides apart.

    TypeError, before anything is sharded: `average_in_collective` is no bool. Other errors are torch's.
    """
    check_choice("fully_shard", average_in_collective)
    modules = [module] if isinstance(module, nn.Module) else list(module)
    before = [part for part in modules if isinstance(part, FSDPModule)]
    sharded = torch_fully_shard(module, **kwargs)
    for part in modules:
        if isinstance(part, FSDPModule) and part not in before:
            part.set_force_sum_reduction_for_comms(not average_in_collective)
    return sharded
