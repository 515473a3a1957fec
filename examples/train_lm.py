"""Train a small language model on the sources of Python's standard library, on whichever device is named.

    python examples/train_lm.py --device maca
    torchrun --nproc-per-node 4 examples/train_lm.py --device maca --ddp       # or --fsdp

Prints the held-out loss before and after, a sample of what the model writes, and which implementation ran for
which op; draws the loss curve to out/loss.png. Everything random comes from CPU generators, so that the same
seed gives the same losses on every device and with any number of ranks, up to rounding.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import zlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import lm_parallel
import torch
from lm_model import LanguageModel, ModelConfig, next_byte_loss
from lm_parallel import Ranks
from torch import Tensor, nn
from tqdm import tqdm

import tefl
import tefl.privateuse1

# Not program text, or not everywhere installed: packages of others, tests, character tables, the manual.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
# Steps; long enough that training starts calmly, and rounding differences between devices stay what they are.
WARMUP = 40
HELD_OUT_WINDOWS = 64
PROMPT = b"def "


@dataclass(frozen=True)
class Corpus:
    """Two texts as 1-D uint8 tensors on the CPU; no file is in both."""

    train: Tensor
    held_out: Tensor


@dataclass
class History:
    """Losses in nats a byte: of each step's batch, and on the held-out text after so many steps.

    `seconds` is how long each step took, from its batch on the CPU to its loss on the CPU.
    """

    train: list[float] = field(default_factory=list)
    held_out: dict[int, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. --device takes any registered name; its error lists them."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    default, add = ModelConfig(), parser.add_argument
    add("--device", type=tefl.privateuse1.device_arg, default="cpu", help="where to train (cpu)")
    add("--steps", type=int, default=300, help="optimizer steps (300)")
    add("--batch", type=int, default=16, help="sequences a step (16)")
    add("--lr", type=float, default=2e-3, help="peak learning rate (2e-3)")
    add("--seed", type=int, default=0, help="seed of the initial weights, the batches and the sample (0)")
    add("--dim", type=int, default=default.dim, help=f"width of the model ({default.dim})")
    add("--layers", type=int, default=default.layers, help=f"layers ({default.layers})")
    add("--heads", type=int, default=default.heads, help=f"attention heads ({default.heads})")
    add("--context", type=int, default=default.context, help=f"bytes a sequence ({default.context})")
    add("--eval-every", type=int, default=50, help="steps between held-out losses (50)")
    add("--sample", type=int, default=300, help="bytes of text to generate (300)")
    add("--out", type=Path, default=Path("out"), help="folder for loss.png (out)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--ddp", action="store_true", help="under torchrun: every rank has the whole model")
    how.add_argument("--fsdp", action="store_true", help="under torchrun: the model is spread over the ranks")
    add("--sum-gradients", action="store_true", help="ranks divide gradients and sum them, instead of an AVG")
    add("--checkpoints", type=Path, metavar="FOLDER", help="resume from the newest in FOLDER; save there")
    add("--save-every", type=int, default=50, help="steps between checkpoints (50)")
    add("--losses", type=Path, metavar="FILE", help="write losses and implementations to FILE as JSON")
    return parser.parse_args(arguments)


def standard_library_sources() -> dict[str, bytes]:
    """Every Python source of the standard library, by its path relative to it, in sorted order."""
    root = Path(os.__file__).parent
    paths = sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix())
    kept = [path for path in paths if not SKIPPED_FOLDERS.intersection(path.relative_to(root).parts)]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in kept}


def read_corpus() -> Corpus:
    """Split the sources by file: about one in twenty is held out, chosen by its name alone."""
    texts: dict[bool, list[bytes]] = {False: [], True: []}
    for name, text in standard_library_sources().items():
        texts[zlib.crc32(name.encode()) % 20 == 0].append(text)
    train, held_out = (bytearray(b"\n".join(texts[key])) for key in (False, True))
    return Corpus(torch.frombuffer(train, dtype=torch.uint8), torch.frombuffer(held_out, dtype=torch.uint8))


def windows(text: Tensor, starts: Tensor, context: int) -> Tensor:
    """Cut `context` + 1 bytes at each start: inputs and what is to be predicted. Returns an int64 matrix."""
    return torch.stack([text[start : start + context + 1] for start in starts.tolist()]).long()


def build_model(options: argparse.Namespace) -> LanguageModel:
    """Make the model with weights drawn on the CPU, so that they are the same on every device."""
    torch.manual_seed(options.seed)
    model = LanguageModel(ModelConfig(options.dim, options.layers, options.heads, options.context))
    return model.to(options.device)


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up over WARMUP steps, then a cosine down to a tenth."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    progress = (step - WARMUP) / max(1, steps - WARMUP)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def held_out_loss(model: LanguageModel, corpus: Corpus, batch: int) -> float:
    """Mean loss on windows spread evenly over the held-out text, the same ones each time."""
    context, device = model.config.context, model.embedding.weight.device
    starts = torch.linspace(0, len(corpus.held_out) - context - 1, HELD_OUT_WINDOWS).long()
    losses = [
        next_byte_loss(model, windows(corpus.held_out, some, context).to(device)).item() * len(some)
        for some in starts.split(batch)
    ]
    return sum(losses) / HELD_OUT_WINDOWS


def parallelise(model: LanguageModel, options: argparse.Namespace) -> nn.Module:
    """Return what is trained: the model, alone or in several ranks."""
    if options.fsdp:
        lm_parallel.shard(model, options.device, not options.sum_gradients)
    return lm_parallel.replicate(model, not options.sum_gradients) if options.ddp else model


def resume(
    model: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace, ranks: Ranks
) -> list[float]:
    """Load the newest checkpoint if there is one; returns the losses of the steps done before it."""
    newest = lm_parallel.newest(options.checkpoints) if options.checkpoints else None
    if newest is None:
        return []
    if ranks.leads:
        print(f"resuming from {newest}")
    return list(lm_parallel.load(newest, model, optimizer)["losses"])


def optimizer_and_schedule(
    model: LanguageModel, options: argparse.Namespace
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """AdamW, and its learning rate over the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
    factor = partial(learning_rate_factor, steps=options.steps)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def update(trained: nn.Module, text: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """Take one optimizer step on `text` (batch, length); returns its loss, in nats a byte."""
    loss = next_byte_loss(trained, text)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
    optimizer.step()
    return loss


def train(model: LanguageModel, corpus: Corpus, options: argparse.Namespace, ranks: Ranks) -> History:
    """Run AdamW for `options.steps` steps on random windows of the training text."""
    trained = parallelise(model, options)
    draws = torch.Generator().manual_seed(options.seed)
    optimizer, schedule = optimizer_and_schedule(model, options)
    history = History(train=resume(model, optimizer, options, ranks))
    done = len(history.train)
    held_out = history.held_out[done] = held_out_loss(model, corpus, options.batch)
    steps = range(1, options.steps + 1)
    progress = tqdm(steps, desc=f"training on {options.device}", unit="step", disable=not ranks.leads)
    for step in progress:
        starts = torch.randint(len(corpus.train) - options.context, (options.batch,), generator=draws)
        if step <= done:  # drawn all the same, so that a resumed run sees the batches of an unbroken one
            schedule.step()
            continue
        batch, start = windows(corpus.train, ranks.share(starts), options.context), time.perf_counter()
        loss = update(trained, batch.to(options.device), optimizer)
        schedule.step()
        history.train.append(ranks.mean(loss))
        history.seconds.append(time.perf_counter() - start)
        if options.checkpoints and step % options.save_every == 0:
            facts = {"step": step, "losses": history.train}
            lm_parallel.save(options.checkpoints / f"step-{step}", model, optimizer, facts)
        if step % options.eval_every == 0 or step == options.steps:
            held_out = history.held_out[step] = held_out_loss(model, corpus, options.batch)
        progress.set_postfix(loss=f"{history.train[-1]:.3f}", held_out=f"{held_out:.3f}")
    return history


def implementation_table(calls: dict[tuple[str, str, str], int]) -> str:
    """Say which implementation ran for which op on which device, and how often."""
    rows = [("op", "implementation", "device", "calls")]
    rows += [(*key, str(count)) for key, count in sorted(calls.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def plot(history: History, path: Path, device: str) -> None:
    """Draw both loss curves to `path`."""
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    steps = range(1, len(history.train) + 1)
    axes.plot(steps, history.train, linewidth=0.8, alpha=0.7, label="training batch")
    axes.plot(list(history.held_out), list(history.held_out.values()), "o-", label="held-out files")
    axes.set(xlabel="step", ylabel="loss, nats a byte", title=f"Byte-level language model on {device}")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def write_losses(path: Path, history: History, calls: dict[tuple[str, str, str], int], device: str) -> None:
    """Write what was measured as JSON: losses, and a list of [op, implementation, device, calls]."""
    report = {
        "device": device,
        "train": history.train,
        "held_out": history.held_out,
        "seconds": history.seconds,
        "implementations": [[*key, count] for key, count in sorted(calls.items())],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """Train, then report."""
    options, ranks = parse_options(arguments), Ranks()
    if options.ddp or options.fsdp:
        ranks, options.device = lm_parallel.join(options.device)
    try:
        run(options, ranks)
    finally:
        lm_parallel.leave()


def run(options: argparse.Namespace, ranks: Ranks) -> None:
    """Train in this rank; the first one reports."""
    model, corpus = build_model(options), read_corpus()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if ranks.leads:
        print(f"{parameters / 1e6:.2f} M parameters, {len(corpus.train) / 1e6:.1f} MB of text to train on")

    with tefl.record() as calls:
        history = train(model, corpus, options, ranks)
        sample = model.generate(PROMPT, options.sample, torch.Generator().manual_seed(options.seed))

    if ranks.leads:
        report(history, sample, calls, options)


def report(
    history: History, sample: bytes, calls: dict[tuple[str, str, str], int], options: argparse.Namespace
) -> None:
    """Print and write what came of it."""
    before, after = next(iter(history.held_out.values())), history.held_out[options.steps]
    print(f"\nheld-out loss: {before:.3f} nats/byte before, {after:.3f} after {options.steps} steps")
    print(f"\nthe model writes:\n\n{sample.decode(errors='replace')}\n\n{implementation_table(calls)}\n")
    plot(history, options.out / "loss.png", str(options.device))
    print(f"loss curve: {options.out / 'loss.png'}")
    if options.losses:
        write_losses(options.losses, history, calls, str(options.device))


if __name__ == "__main__":
    main()
