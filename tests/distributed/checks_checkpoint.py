"""Sharded training that goes on from a checkpoint of another number of ranks: see test_checkpoint.py."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checks_training import loss_of, model, rows_of
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import tefl.distributed

ALL_ROWS = 4
"""Parts of the batch, shared out to however many ranks there are."""


def single_process(steps: int) -> list[float]:
    """The losses of so many steps on the CPU."""
    net, losses = model(), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(net, torch.cat([rows_of(part) for part in range(ALL_ROWS)]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_training_goes_on_from_the_checkpoint(rank: int, size: int) -> None:
    """Load what the world before saved, train two steps, save; losses are those of a single process."""
    folder, world = Path(os.environ["CHECKPOINTS"]), int(os.environ["WORLD"])
    net = model().to("maca")
    for layer in (net[0], net[2], net):
        tefl.distributed.fully_shard(layer, mesh=dist.init_device_mesh("maca", (size,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    done = 0
    if world > 0:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()  # what is right afterwards was loaded
        done = load(folder / str(world - 1), net, optimizer)
    rows = torch.cat([rows_of(part) for part in range(ALL_ROWS)]).chunk(size)[rank].to("maca")
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = loss_of(net, rows)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    torch.testing.assert_close(losses, single_process(done + 2)[done:], rtol=1e-4, atol=1e-6)
    model_state, optimizer_state = get_state_dict(net, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "facts": {"step": done + 2}}
    dcp.save(state, checkpoint_id=folder / str(world))


def load(folder: Path, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    model_state, optimizer_state = get_state_dict(net, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "facts": {"step": 0}}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step: int = state["facts"]["step"]
    return step
