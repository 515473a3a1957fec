"""A training step of the demo model, as examples/train_lm.py takes it, in sizes of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from lm_model import LanguageModel, ModelConfig, next_byte_loss

SIZES = {
    "tiny": (2, ModelConfig(dim=16, heads=2, context=8)),
    "demo": (16, ModelConfig()),
    "wide": (16, ModelConfig(dim=1024, heads=16, context=512)),
}
"""Sequences a step and the model: of `tiny` little but host time is left on a CPU, of `demo` on a GPU."""


def make_step(size: str, device: str) -> Callable[[], None]:
    """Return a training step on `device`: forward, backward, clipping, AdamW, and the loss read."""
    batch, config = SIZES[size]
    torch.manual_seed(0)
    model = LanguageModel(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    text = torch.randint(0, 256, (batch, config.context + 1))

    def step() -> None:
        loss = next_byte_loss(model, text.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step
