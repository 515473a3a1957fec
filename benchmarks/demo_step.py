"""A step of the demo model, as examples/train_lm.py takes it, alone or in ranks, in sizes of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import lm_parallel
from lm_model import LanguageModel, ModelConfig, next_byte_loss

SIZES = {
    "tiny": (2, ModelConfig(dim=16, heads=2, context=8)),
    "demo": (16, ModelConfig()),
    "wide": (16, ModelConfig(dim=1024, heads=16, context=512)),
    "several": (16, ModelConfig(dim=512, layers=8, heads=8, context=256)),
}
"""Sequences a step and rank, and the model: of `tiny` little but host time is left on a CPU, of `demo` on a
GPU; `several` is what multi_gpu.py trains."""


def parallelise(model: LanguageModel, device: torch.device, how: str) -> nn.Module:
    """Return the module to train: `model` itself if "alone", else over the ranks by "ddp" or "fsdp"."""
    if how == "ddp":
        return lm_parallel.replicate(model, average_in_collective=True)
    if how == "fsdp":
        lm_parallel.shard(model, device, average_in_collective=True)
    return model


def make_step(size: str, name: str, how: str = "alone") -> Callable[[], None]:
    """Return a training step on the device `name`: forward, backward, clipping, AdamW, and the loss read.

    With `how`, "ddp" or "fsdp", it is that of one of the ranks that the environment says, as under torchrun.
    """
    batch, config = SIZES[size]
    ranks, device = lm_parallel.Ranks(), torch.device(name)
    if how != "alone":
        ranks, device = lm_parallel.join(device)
    torch.manual_seed(0)
    model = LanguageModel(config).to(device)
    trained = parallelise(model, device, how)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    text = torch.randint(0, 256, (batch, config.context + 1))

    def step() -> None:
        loss = next_byte_loss(trained, text.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        ranks.mean(loss)

    return step
