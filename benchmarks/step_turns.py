"""A training step's time under two names, of processes that live long and take turns.

    python benchmarks/step_turns.py --names cuda maca --provider cuda --sizes demo wide --json FILE

A process trains under one name and is told when: so many steps, then the other one's. What the machine does
meanwhile falls on both, and both keep to the same two cores. What differs between processes of one name, such
as where their memory lies, is told by several pairs of them, and by pairs of two plain ones ("noise").
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from demo_step import SIZES, make_step
from facts import now, versions
from medians import interval

from tefl.privateuse1 import PrivateUse1Backend, register_backend

WARM_UP = 10  # steps
STEPS = {"tiny": 20, "demo": 20, "wide": 3}
"""Steps a turn."""


# ------------------------------------------------------------------------------------- in a process --


def work(name: str, provider: str, size: str) -> None:
    """Take as many steps as a line of the input says, and answer with the milliseconds of one."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    if name not in ("cpu", "cuda"):
        register_backend(PrivateUse1Backend(name, provider))
    step = make_step(size, name)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(1000 * (time.perf_counter() - start) / int(line), flush=True)


class Trainer:
    """A process that trains under one name when it is told to."""

    def __init__(self, name: str, provider: str, size: str) -> None:
        command = [sys.executable, __file__, "--work", name, "--provider", provider, "--sizes", size]
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()

    def answer(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self._process.args)}: ended with status {self._process.wait()}")
        return float(line)

    def turn(self, steps: int) -> float:
        self.ask(steps)
        return self.answer()

    def end(self) -> None:
        self._process.communicate()


@contextlib.contextmanager
def training(names: list[str], provider: str, size: str) -> Iterator[list[Trainer]]:
    """Start a process for each name and warm them up."""
    trainers = [Trainer(name, provider, size) for name in names]
    try:
        for trainer in trainers:
            trainer.ask(WARM_UP)
        for trainer in trainers:
            trainer.answer()
        yield trainers
    finally:
        for trainer in trainers:
            trainer.end()


# ------------------------------------------------------------------------------------- over several --


def take_turns(names: list[str], provider: str, size: str, turns: int) -> dict[str, Any]:
    """Compare one pair of processes: the second name's time over the first's, of turns beside each other."""
    with training(names, provider, size) as trainers:
        times = []
        for number in range(turns):
            order = (0, 1) if number % 2 else (1, 0)  # neither is always the first
            taken = {side: trainers[side].turn(STEPS[size]) for side in order}
            times.append((taken[0], taken[1]))
    ratios = [second / first for first, second in times]
    medians = [statistics.median(side) for side in zip(*times, strict=True)]
    return {"step_ms": medians, "ratio": statistics.median(ratios), "ratios": ratios}


def compare(names: list[str], provider: str, size: str, pairs: int, turns: int) -> dict[str, Any]:
    """Compare several pairs, of both names and of the first one alone."""
    both = [take_turns(names, provider, size, turns) for _ in range(pairs)]
    plain = [take_turns(names[:1] * 2, provider, size, turns) for _ in range(pairs)]
    ratios = [ratio for pair in both for ratio in pair["ratios"]]
    return {
        "size": size,
        "steps_a_turn": STEPS[size],
        "turns": turns,
        "step_ms": dict(zip(names, both[0]["step_ms"], strict=True)),
        "ratio": statistics.median(ratios),
        "interval": interval(ratios),
        "ratio_of_each_pair": [pair["ratio"] for pair in both],
        "noise_of_each_pair": [pair["ratio"] for pair in plain],
    }


def show(figure: dict[str, Any]) -> None:
    low, high = figure["interval"]
    print(f"{figure['size']}: {figure['ratio']:.3f} ({low:.3f} to {high:.3f})", end="")
    for key in ("ratio_of_each_pair", "noise_of_each_pair"):
        print(f"  {key}", *(f"{ratio:.3f}" for ratio in figure[key]), end="")
    print(flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", nargs=2, default=["cpu", "maca"], help="the plain device and ours")
    parser.add_argument("--provider", default="sim", help="of ours (sim)")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny"], help="of the model (tiny)")
    parser.add_argument("--pairs", type=int, default=3, help="of processes (3)")
    parser.add_argument("--turns", type=int, default=30, help="of each process (30)")
    parser.add_argument("--json", type=Path, help="file to write the results to")
    parser.add_argument("--work", metavar="NAME", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.work:
        return work(options.work, options.provider, options.sizes[0])
    figures = []
    for size in options.sizes:
        figures.append(compare(options.names, options.provider, size, options.pairs, options.turns))
        show(figures[-1])
    if options.json:
        facts = {"date": now(), **versions(), "provider": options.provider, "figures": figures}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
