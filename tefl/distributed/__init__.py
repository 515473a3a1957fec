"""Data-parallel training on a device: torch's DistributedDataParallel and FSDP2, with a say in how gradients
are averaged. The process groups themselves are `torch.distributed`'s; their backend for a device is "tefl".
"""

from __future__ import annotations

from tefl.distributed.data_parallel import DistributedDataParallel
from tefl.distributed.sharding import fully_shard

__all__ = ["DistributedDataParallel", "fully_shard"]
