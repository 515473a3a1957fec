"""Train a small Hugging Face model with random weights on whichever device is named, and let it write.

    python examples/train_hf.py --model llama --device maca --compare cpu

Nothing in it knows of the device but its name. The task is to count: a sequence starts anywhere and goes on
by one, modulo the vocabulary. Weights and batches come from CPU generators, so that a seed gives the same
losses on every device up to rounding; --compare trains once more, on another device, and fails where they
differ. Downloads nothing. Needs `transformers`: pip install "tefl[hf]".
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

import tefl.privateuse1

VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS = 32, 16, 64, 2, 4
PROMPT_LENGTH, WRITTEN = 4, 12
TOLERANCE = 1e-4
"""The most by which losses of two devices may differ, in nats a token."""


@dataclass
class Run:
    """What a training came to: the loss of each step in nats a token, and the tokens written afterwards."""

    device: str
    losses: list[float]
    written: list[int]


def config_of(model: str) -> PretrainedConfig:
    """Return a small configuration without dropout, whose masks would differ between kinds of devices."""
    shared: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": None}
    if model == "gpt2":
        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 2 * LENGTH}
        return GPT2Config(**shared, **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    layers = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "intermediate_size": 2 * WIDTH}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS // 2}
    if model == "llama":
        return LlamaConfig(**shared, **layers, **heads)
    return MixtralConfig(**shared, **layers, **heads, num_local_experts=4, num_experts_per_tok=2)


MODELS: dict[str, type[PreTrainedModel]] = {
    "gpt2": GPT2LMHeadModel,
    "llama": LlamaForCausalLM,
    "mixtral": MixtralForCausalLM,
}


def counting(starts: Tensor, length: int) -> Tensor:
    """Return an int64 matrix whose rows count up from `starts`, modulo the vocabulary."""
    return (starts[:, None] + torch.arange(length)) % VOCABULARY


def train(options: argparse.Namespace, device: str) -> Run:
    """Train a fresh model on `device` and let it go on from the start of a sequence."""
    torch.manual_seed(options.seed)
    model = MODELS[options.model](config_of(options.model)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    draws = torch.Generator().manual_seed(options.seed)
    losses = []
    for _ in range(options.steps):
        starts = torch.randint(VOCABULARY, (options.batch,), generator=draws)
        batch = counting(starts, LENGTH).to(device)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Run(device, losses, write(model.eval(), device))


def write(model: PreTrainedModel, device: str) -> list[int]:
    """Return the tokens that the model writes after a few that count up from zero."""
    prompt = counting(torch.zeros(1, dtype=torch.int64), PROMPT_LENGTH).to(device)
    mask = torch.ones_like(prompt)
    written = model.generate(
        prompt, attention_mask=mask, max_new_tokens=WRITTEN, do_sample=False, pad_token_id=0
    )
    return written[0, PROMPT_LENGTH:].tolist()


def tell(run: Run) -> None:
    """Print what a run came to."""
    print(
        f"{run.device}: loss {run.losses[0]:.4f} at first, {run.losses[-1]:.4f} after {len(run.losses)} steps"
    )
    print(f"{run.device}: after {list(range(PROMPT_LENGTH))} it writes {run.written}")


def differ(runs: list[Run]) -> bool:
    """Print how far two runs are apart; return whether that is too far."""
    first, second = runs
    apart = max(abs(a - b) for a, b in zip(first.losses, second.losses, strict=True))
    same = "the same" if first.written == second.written else "different"
    print(f"{first.device} and {second.device}: losses at most {apart:.1e} apart, {same} tokens")
    return apart > TOLERANCE or first.written != second.written


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. --device takes any registered name; its error lists them."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    device, add = tefl.privateuse1.device_arg, parser.add_argument
    add("--model", choices=MODELS, default="gpt2", help="architecture (gpt2)")
    add("--device", type=device, default="cpu", help="where to train (cpu)")
    add("--compare", type=device, metavar="DEVICE", help="train there too, and fail where the losses differ")
    add("--steps", type=int, default=40, help="optimizer steps (40)")
    add("--batch", type=int, default=16, help="sequences a step (16)")
    add("--lr", type=float, default=3e-3, help="learning rate (3e-3)")
    add("--seed", type=int, default=0, help="seed of the weights and the batches (0)")
    add("--json", type=Path, metavar="FILE", help="write losses and tokens to FILE")
    return parser.parse_args(arguments)


def main() -> int:
    """Train, write, compare; 1 where two devices disagree."""
    options = parse_options()
    devices = [options.device, *([options.compare] if options.compare else [])]
    runs = [train(options, str(device)) for device in devices]
    for run in runs:
        tell(run)
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    return int(len(runs) == 2 and differ(runs))


if __name__ == "__main__":
    sys.exit(main())
