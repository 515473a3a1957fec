"""What train_lm.py needs to run in several ranks under torchrun, and to save and resume."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from lm_model import LanguageModel
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import tefl


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; alone, rank 0 of 1."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that prints and writes."""
        return self.rank == 0

    def share(self, batch: Tensor) -> Tensor:
        """This rank's part of a batch that all ranks drew alike."""
        if len(batch) % self.size:
            raise SystemExit(
                f"--batch {len(batch)} cannot be shared evenly by {self.size} ranks: "
                f"give a multiple of {self.size}"
            )
        return batch.chunk(self.size)[self.rank]

    def mean(self, loss: Tensor) -> float:
        """The mean of all ranks' losses, which is the loss of the whole batch."""
        value = loss.detach().clone()
        if self.size > 1:
            dist.all_reduce(value, op=dist.ReduceOp.AVG)
        return value.item()


def join(device: torch.device) -> tuple[Ranks, torch.device]:
    """Join the ranks that torchrun started; returns them, and this rank's device of the type of `device`."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit(
            "--ddp and --fsdp want ranks: torchrun --nproc-per-node 2 examples/train_lm.py --ddp"
        )
    local = int(os.environ["LOCAL_RANK"])
    if device.type != "cpu":
        module = torch.get_device_module(device)
        device = torch.device(device.type, local % module.device_count())
        module.set_device(device)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    return Ranks(dist.get_rank(), dist.get_world_size()), device


def leave() -> None:
    """End what join() began."""
    if dist.is_initialized():
        dist.destroy_process_group()


def shard(model: LanguageModel, device: torch.device, average_in_collective: bool) -> None:
    """Apply FSDP2: every block's parameters are spread over the ranks, and gathered when it runs."""
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for part in (*model.blocks, model):
        tefl.distributed.fully_shard(part, mesh=mesh, average_in_collective=average_in_collective)


def replicate(model: LanguageModel, average_in_collective: bool) -> nn.Module:
    """Wrap the model in DDP: every rank has all parameters, and gradients are averaged."""
    return tefl.distributed.DistributedDataParallel(model, average_in_collective=average_in_collective)


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, facts: dict[str, Any]) -> None:
    """Write a checkpoint that any number of ranks can load; every rank writes what it holds.

    A half-written one never replaces a whole one: the folder gets its name when all are done.
    """
    model_state, optimizer_state = get_state_dict(model, optimizer)
    unfinished = folder.with_name(f"{folder.name}.part")
    state = {"model": model_state, "optimizer": optimizer_state, "facts": facts}
    dcp.save(state, checkpoint_id=unfinished, no_dist=not dist.is_initialized())
    if not dist.is_initialized() or dist.get_rank() == 0:
        unfinished.rename(folder)


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Read a checkpoint into model and optimizer, however many ranks wrote it; returns its facts."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    facts: dict[str, Any] = {"step": 0, "losses": []}
    state = {"model": model_state, "optimizer": optimizer_state, "facts": facts}
    dcp.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["facts"]


def newest(folder: Path) -> Path | None:
    """The latest whole checkpoint among FOLDER/step-N, None where there is none."""
    found = [path for path in folder.glob("step-*") if path.suffix != ".part"]
    return max(found, key=lambda path: int(path.name.removeprefix("step-")), default=None)
