"""A training step's time under two names, of processes that live long and take turns.

    python benchmarks/step_turns.py --names cuda maca --provider cuda --sizes demo wide --json FILE
    python benchmarks/step_turns.py --names cuda maca --provider cuda --sizes several --how ddp --ranks 2

A process trains under one name and is told when: so many steps, then the other one's. What the machine does
meanwhile falls on both, and both keep to the same cores. What differs between processes of one name, such as
where their memory lies, is told by several pairs of them, and by pairs of two plain ones ("noise"). With
--how each side is several ranks, a process each; the slowest one's time counts.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from demo_step import SIZES, make_step
from facts import now, versions
from medians import interval
from rendezvous import rank_environments

from tefl.privateuse1 import PrivateUse1Backend, register_backend

WARM_UP = 10  # steps
STEPS = {"tiny": 20, "demo": 20, "wide": 3, "several": 5}
"""Steps a turn."""
CORES = 4
"""Of each rank: as many as it has busy threads, the collective library's among them."""


@dataclass(frozen=True)
class Setting:
    """The plain name and ours with its provider, the model, how it is trained and in how many ranks."""

    names: tuple[str, str]
    provider: str
    size: str
    how: str = "alone"
    ranks: int = 1


# ------------------------------------------------------------------------------------- in a process --


def work(name: str, setting: Setting) -> None:
    """Take as many steps as a line of the input says, and answer with the milliseconds of one."""
    rank, cores = int(os.environ["RANK"]), sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    os.sched_setaffinity(0, cores[rank * CORES :][:CORES] or cores)
    if name not in ("cpu", "cuda"):
        register_backend(PrivateUse1Backend(name, setting.provider))
    step = make_step(setting.size, name, setting.how)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(1000 * (time.perf_counter() - start) / int(line), flush=True)


class Trainer:
    """The processes, one a rank, that train under one name when they are told to."""

    def __init__(self, name: str, setting: Setting) -> None:
        command = [sys.executable, __file__, "--work", name, "--provider", setting.provider]
        command += ["--sizes", setting.size, "--how", setting.how]
        self._processes = [
            subprocess.Popen(
                command,
                env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **variables},
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for variables in rank_environments(setting.ranks)
        ]

    def ask(self, steps: int) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()

    def answer(self) -> float:
        """Return the slowest rank's milliseconds a step; RuntimeError where one has ended."""
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(process.stdout.readline())
            if not answers[-1]:
                raise RuntimeError(f"{' '.join(process.args)}: ended with status {process.wait()}")
        return max(map(float, answers))

    def turn(self, steps: int) -> float:
        self.ask(steps)
        return self.answer()

    def end(self) -> None:
        for process in self._processes:  # left to themselves, ranks wait for one another at their end
            process.kill()
        for process in self._processes:
            process.communicate()


@contextlib.contextmanager
def training(names: Sequence[str], setting: Setting) -> Iterator[list[Trainer]]:
    """Start processes for each name and warm them up."""
    trainers = [Trainer(name, setting) for name in names]
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


def take_turns(names: Sequence[str], setting: Setting, turns: int) -> dict[str, Any]:
    """Compare one pair of trainers: the second name's time over the first's, of turns beside each other."""
    steps = STEPS[setting.size]
    with training(names, setting) as trainers:
        times = []
        for number in range(turns):
            order = (0, 1) if number % 2 else (1, 0)  # neither is always the first
            taken = {side: trainers[side].turn(steps) for side in order}
            times.append((taken[0], taken[1]))
    ratios = [second / first for first, second in times]
    medians = [statistics.median(side) for side in zip(*times, strict=True)]
    return {"step_ms": medians, "ratio": statistics.median(ratios), "ratios": ratios}


def compare(setting: Setting, pairs: int, turns: int) -> dict[str, Any]:
    """Compare several pairs, of both names and of the plain one alone."""
    both = [take_turns(setting.names, setting, turns) for _ in range(pairs)]
    plain = [take_turns(setting.names[:1] * 2, setting, turns) for _ in range(pairs)]
    ratios = [ratio for pair in both for ratio in pair["ratios"]]
    return {
        "size": setting.size,
        "how": setting.how,
        "ranks": setting.ranks,
        "steps_a_turn": STEPS[setting.size],
        "turns": turns,
        "step_ms": dict(zip(setting.names, both[0]["step_ms"], strict=True)),
        "ratio": statistics.median(ratios),
        "interval": interval(ratios),
        "ratio_of_each_pair": [pair["ratio"] for pair in both],
        "noise_of_each_pair": [pair["ratio"] for pair in plain],
    }


def show(figure: dict[str, Any]) -> None:
    low, high = figure["interval"]
    print(f"{figure['size']} {figure['how']}: {figure['ratio']:.3f} ({low:.3f} to {high:.3f})", end="")
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
    parser.add_argument("--how", choices=("alone", "ddp", "fsdp"), default="alone", help="it trains (alone)")
    parser.add_argument("--ranks", type=int, default=1, help="processes of a side, with --how (1)")
    parser.add_argument("--pairs", type=int, default=3, help="of sides (3)")
    parser.add_argument("--turns", type=int, default=30, help="of each side (30)")
    parser.add_argument("--json", type=Path, help="file to write the results to")
    parser.add_argument("--work", metavar="NAME", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    settings = [
        Setting(tuple(options.names), options.provider, size, options.how, options.ranks)
        for size in options.sizes
    ]
    if options.work:
        return work(options.work, settings[0])
    figures = []
    for setting in settings:
        figures.append(compare(setting, options.pairs, options.turns))
        show(figures[-1])
    if options.json:
        facts = {"date": now(), **versions(), "provider": options.provider, "figures": figures}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
