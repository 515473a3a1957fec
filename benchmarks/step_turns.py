"""A training step's time under two names, of processes that live long and take turns.

    python benchmarks/step_turns.py --names cuda maca --provider cuda --sizes demo wide --json FILE
    python benchmarks/step_turns.py --names cuda maca --provider cuda --sizes several --how ddp --ranks 2

Several processes train under each name, each when it is told to: so many steps, then the next one's. What the
machine does meanwhile falls on all. In every round of turns the cores are drawn anew, the same ones for all
processes of one rank, so that no name has the faster ones. Processes of one name differ all the same: each
counts by the median of its turns, and the interval is a bootstrap over processes. With --how each is several
ranks, a process each; the slowest one's time counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from demo_step import SIZES, make_step
from facts import now, versions
from rendezvous import rank_environments

from tefl.privateuse1 import PrivateUse1Backend, register_backend

WARM_UP = 10  # steps
STEPS = {"tiny": 20, "demo": 20, "wide": 3, "several": 5}
"""Steps a turn."""
CORES = 4
"""Of each rank: as many as it has busy threads, the collective library's among them."""

LIMIT = 300.0
"""Seconds until a process that does not answer counts as hanging."""


@dataclass(frozen=True)
class Setting:
    """The plain name and ours with its provider, the model, how it is trained and in how many ranks."""

    names: tuple[str, str]
    provider: str
    size: str
    how: str = "alone"
    ranks: int = 1


# ------------------------------------------------------------------------------------- in a process --


def move_to_cores(cores: list[int], round_: int, rank: int) -> None:
    """Bind every thread of this process, those of the GPU's driver too, to its rank's part of `cores`.

    The parts are drawn anew for each round.
    """
    drawn = random.Random(round_).sample(cores, len(cores))
    own = drawn[rank * CORES : (rank + 1) * CORES] or cores  # all, where there are too few for every rank
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), own)


def work(name: str, setting: Setting) -> None:
    """For each line "STEPS ROUND" of the input take the steps, and answer with the milliseconds of one."""
    torch.set_num_threads(1)
    if name not in ("cpu", "cuda"):
        register_backend(PrivateUse1Backend(name, setting.provider))
    step = make_step(setting.size, name, setting.how)
    cores = sorted(os.sched_getaffinity(0))
    for line in sys.stdin:
        steps, round_ = map(int, line.split())
        move_to_cores(cores, round_, int(os.environ["RANK"]))
        start = time.perf_counter()
        for _ in range(steps):
            step()
        print(1000 * (time.perf_counter() - start) / steps, flush=True)


def answer_of(process: subprocess.Popen[str]) -> float:
    """Return the milliseconds a step that the process answers with; RuntimeError where it does not."""
    assert process.stdout is not None
    command = " ".join(map(str, process.args))
    if not select.select([process.stdout], [], [], LIMIT)[0]:
        raise RuntimeError(f"{command}: no answer within {LIMIT:.0f} s, wanted the milliseconds of a step")
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{command}: ended with status {process.wait()}")
    return float(line)


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

    def ask(self, steps: int, round_: int) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{steps} {round_}\n")
            process.stdin.flush()

    def answer(self) -> float:
        """Return the slowest rank's milliseconds a step; RuntimeError where one has ended, or hangs."""
        return max(map(answer_of, self._processes))

    def turn(self, steps: int, round_: int) -> float:
        self.ask(steps, round_)
        return self.answer()

    def end(self) -> None:
        for process in self._processes:  # left to themselves, ranks wait for one another at their end
            process.kill()
        for process in self._processes:
            process.communicate()


@contextlib.contextmanager
def training(setting: Setting, processes: int) -> Iterator[list[list[Trainer]]]:
    """Start as many trainers of each name, and warm them up."""
    trainers: list[list[Trainer]] = [[] for _ in setting.names]
    try:
        for _ in range(processes):
            for name, side in zip(setting.names, trainers, strict=True):  # neither name's are all the first
                side.append(Trainer(name, setting))
        for trainer in chain(*trainers):
            trainer.ask(WARM_UP, 0)
        for trainer in chain(*trainers):
            trainer.answer()
        yield trainers
    finally:
        for trainer in chain(*trainers):
            trainer.end()


# ------------------------------------------------------------------------------------- over several --


def ratio_of(plain: Sequence[float], ours: Sequence[float]) -> float:
    """Return the ratio of the medians over processes."""
    return statistics.median(ours) / statistics.median(plain)


def interval_of(plain: list[float], ours: list[float]) -> list[float]:
    """Return a 95% confidence interval of ratio_of(), by bootstrap over the processes of each name."""
    draws = random.Random(0)
    ratios = [
        ratio_of(draws.choices(plain, k=len(plain)), draws.choices(ours, k=len(ours))) for _ in range(10_000)
    ]
    fortieths = statistics.quantiles(ratios, n=40)
    return [fortieths[0], fortieths[-1]]


def compare(setting: Setting, processes: int, turns: int) -> dict[str, Any]:
    """Let the trainers of both names take so many turns each, and compare."""
    steps, draws = STEPS[setting.size], random.Random(0)
    with training(setting, processes) as trainers:
        everyone = [*chain(*trainers)]
        times: dict[Trainer, list[float]] = {trainer: [] for trainer in everyone}
        for round_ in range(turns):
            for trainer in draws.sample(everyone, len(everyone)):
                times[trainer].append(trainer.turn(steps, round_))
    plain, ours = ([statistics.median(times[each]) for each in side] for side in trainers)
    return {
        "size": setting.size,
        "how": setting.how,
        "ranks": setting.ranks,
        "steps_a_turn": steps,
        "turns": turns,
        "step_ms": dict(zip(setting.names, (plain, ours), strict=True)),
        "ratio": ratio_of(plain, ours),
        "interval": interval_of(plain, ours),
    }


def show(figure: dict[str, Any]) -> None:
    low, high = figure["interval"]
    print(
        f"{figure['size']} {figure['how']}: {figure['ratio']:.3f} ({low:.3f} to {high:.3f}), ms a step of",
        end="",
    )
    for name, processes in figure["step_ms"].items():
        print(f" {name}:", *(f"{ms:.2f}" for ms in sorted(processes)), end="")
    print(flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", nargs=2, default=["cpu", "maca"], help="the plain device and ours")
    parser.add_argument("--provider", default="sim", help="of ours (sim)")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny"], help="of the model (tiny)")
    parser.add_argument(
        "--how", choices=("alone", "ddp", "fsdp"), default="alone", help="way to train (alone)"
    )
    parser.add_argument("--ranks", type=int, default=1, help="of each, with --how ddp or fsdp (1)")
    parser.add_argument(
        "--processes", type=int, default=8, help="of each name; with --how, groups of ranks (8)"
    )
    parser.add_argument("--turns", type=int, default=20, help="of each (20)")
    parser.add_argument("--json", type=Path, help="file to write the results to")
    parser.add_argument("--work", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ranks > 1 and options.how == "alone":
        parser.error(f"--ranks {options.ranks} with --how alone: several ranks want --how ddp or --how fsdp")
    return options


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
        figures.append(compare(setting, options.processes, options.turns))
        show(figures[-1])
    if options.json:
        facts = {"date": now(), **versions(), "provider": options.provider, "figures": figures}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
