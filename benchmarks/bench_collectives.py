"""What a collective costs on the device, beside the same one of the process group beneath it.

    export TORCH_DEVICE_BACKEND_AUTOLOAD=0  # no installed provider instead
    torchrun --nproc-per-node 2 benchmarks/bench_collectives.py --provider sim --json benchmarks/results
    torchrun --nproc-per-node 8 benchmarks/bench_collectives.py --provider cuda --largest 1G --json FOLDER

Both run in the same processes, in many short rounds that alternate, over the same library: on sim "tefl" over
gloo beside gloo on CPU tensors, on cuda "tefl" over NCCL beside NCCL on CUDA tensors. Times are of one call,
the slowest rank's, median over rounds. The ratio is the median of the rounds' own ratios, each of two times
that were taken shortly after each other, so that a load from elsewhere falls on both; `quartiles` say how far
they scatter, and `interval` where their median lies with 95% confidence. `noise` is the ratio of a second
plain process group, which has connections and tensors of its own, to the first, with its interval. `more_us`
is the median of what ours took more, `processor_ratio` is of the processor time of all threads and ranks. On
sim the sizes with a goal get eight times as many rounds. Every collective's values are checked first.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from facts import now, versions
from medians import interval
from torch import Tensor

from tefl.privateuse1 import PrivateUse1Backend, is_registered, register_backend

SIZES = [1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30]
"""Bytes on each rank."""
GOALS = {"sim": {1 << 10: 1.1, 1 << 26: 1.02}, "cuda": {size: 1.02 for size in SIZES if size >= 1 << 20}}
"""Ratios that are wanted at most."""
MOST_OVER_GLOO, MOST_OVER_NCCL = (200, 1 << 22), (20, 1 << 28)
"""Calls and bytes of a round. On two cores gloo's threads take some hundred calls to settle; on a GPU calls
follow each other in the stream."""
LARGE_OVER_GLOO, LARGE_OVER_NCCL = 1 << 21, 1 << 24
"""Bytes up to which a call is mostly the host's work, and gets four times as many rounds."""
GOALS_US = {"cuda": {size: 5.0 for size in SIZES if size < 1 << 20}}
"""Microseconds that a call of ours may take more, where a ratio would be of next to nothing."""

LINE = (
    "{collective:15} {bytes:>11} B  {device_us:11.1f} us  {plain_us:11.1f} us  {ratio:.3f}"
    "  ({interval[0]:.3f} to {interval[1]:.3f})  noise {noise:.3f} ({noise_interval[0]:.3f} to"
    " {noise_interval[1]:.3f})  of processor time {processor_ratio:.3f}"
)


class Memory(NamedTuple):
    """What collectives work on: a process group, a whole, its halves, one more, and a rank's share of one."""

    group: dist.ProcessGroup
    whole: Tensor
    halves: tuple[Tensor, ...]
    other: Tensor
    part: Tensor


@dataclass(frozen=True)
class Collective:
    """`call` works on a Memory and leaves its result in `result`."""

    call: Callable[[Memory], Any]
    wanted: Callable[[Tensor, int, int], Tensor | None]
    """(all ranks' wholes, one a row, rank, size) -> the result; None: undefined on this rank."""
    result: str = "whole"


def ring(memory: Memory) -> None:
    """Send the first half to the right, receive into the second."""
    rank, size = dist.get_rank(), dist.get_world_size()
    first, second = memory.halves
    sends = dist.P2POp(dist.isend, first, (rank + 1) % size, memory.group)
    receives = dist.P2POp(dist.irecv, second, (rank - 1) % size, memory.group)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


# Their names since 2.13.
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

COLLECTIVES = {
    "all_reduce": Collective(lambda m: dist.all_reduce(m.whole, group=m.group), lambda a, r, n: a.sum(0)),
    "broadcast": Collective(lambda m: dist.broadcast(m.whole, 0, m.group), lambda a, r, n: a[0]),
    "reduce": Collective(
        lambda m: dist.reduce(m.whole, 0, group=m.group), lambda a, r, n: a.sum(0) if r == 0 else None
    ),
    "all_gather": Collective(
        lambda m: all_gather(m.whole, m.part, m.group),
        lambda a, r, n: torch.cat([row.chunk(n)[0] for row in a]),
    ),
    "reduce_scatter": Collective(
        lambda m: reduce_scatter(m.part, m.whole, group=m.group), lambda a, r, n: a.sum(0).chunk(n)[r], "part"
    ),
    "all_to_all": Collective(
        lambda m: dist.all_to_all_single(m.other, m.whole, group=m.group),
        lambda a, r, n: torch.cat([row.chunk(n)[r] for row in a]),
        "other",
    ),
    "send and recv": Collective(
        ring, lambda a, r, n: torch.cat([a[r].chunk(2)[0], a[(r - 1) % n].chunk(2)[0]])
    ),
}


def given(rank: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """What rank `rank` starts with: small whole numbers, so that sums are exact."""
    return torch.arange(count, device=device).add_(3 * rank).remainder_(5).float()


def count_of(nbytes: int) -> int:
    """How many float32 elements `nbytes` bytes hold, so many that every rank has two equal parts."""
    step = 2 * dist.get_world_size()
    return nbytes // 4 // step * step


class Side(NamedTuple):
    """What is timed beside others: a process group, and the device of its tensors."""

    group: dist.ProcessGroup
    device: torch.device


def memory(count: int, side: Side) -> Memory:
    group, device = side
    whole = given(dist.get_rank(), count).to(device)
    part = whole.chunk(dist.get_world_size())[0].clone()
    return Memory(group, whole, whole.chunk(2), torch.zeros_like(whole), part)


def check(name: str, collective: Collective, count: int, side: Side) -> None:
    """Compare one call with PyTorch's arithmetic on the CPU."""
    rank, size = dist.get_rank(), dist.get_world_size()
    given_to = memory(count, side)
    collective.call(given_to)
    wanted = collective.wanted(torch.stack([given(other, count) for other in range(size)]), rank, size)
    if wanted is not None and not torch.equal(getattr(given_to, collective.result).cpu(), wanted):
        raise SystemExit(f"{name} of {count} elements on {side.device}, rank {rank}: wrong values")


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


class Taken(NamedTuple):
    """What one call took, in seconds: by the clock, and of processors, all threads together."""

    elapsed: float
    processor: float


def take(call: Callable[[Memory], Any], given_to: Memory, calls: int) -> Taken:
    """Time a round of several calls; all ranks begin together.

    The call before them is not timed: it finds the caches as the other side has left them, which no program
    does that works on one of the two.
    """
    device = given_to.whole.device
    call(given_to)
    dist.barrier()
    synchronize(device)
    start, processor = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call(given_to)
    synchronize(device)
    return Taken((time.perf_counter() - start) / calls, (time.process_time() - processor) / calls)


def compare(
    collective: Collective, nbytes: int, sides: list[Side], calls: int, rounds: int
) -> dict[str, Any]:
    """Time ours, a plain one and another plain one in turn; of times the slowest rank's count, as for
    whoever waits for the result.
    """
    plain_device = sides[1].device
    memories = [memory(count_of(nbytes), side) for side in sides]
    numbers, draws = range(len(sides)), random.Random(0)  # all ranks draw alike
    elapsed, processor = [], []
    for turn in range(rounds + 2):
        order = draws.sample(numbers, len(numbers))
        taken = {number: take(collective.call, memories[number], calls) for number in order}
        if turn < 2:  # the first ones make connections and buffers
            continue
        elapsed.append(over_ranks("MAX", [taken[number].elapsed for number in numbers], plain_device))
        processor.append(over_ranks("SUM", [taken[number].processor for number in numbers], plain_device))
    ratios = [ours / plain for ours, plain, _ in elapsed]
    noise = [other / plain for _, plain, other in elapsed]
    low, middle, high = statistics.quantiles(ratios, n=4)
    ours, plain, _ = (statistics.median(times) for times in zip(*elapsed, strict=True))
    return {
        "device_us": ours * 1e6,
        "plain_us": plain * 1e6,
        "more_us": statistics.median(ours - plain for ours, plain, _ in elapsed) * 1e6,
        "ratio": middle,
        "quartiles": [low, high],
        "interval": interval(ratios),
        "noise": statistics.median(noise),
        "noise_interval": interval(noise),
        "processor_ratio": statistics.median(ours / plain for ours, plain, _ in processor),
        "rounds": len(elapsed),
        "calls_a_round": calls,
    }


def over_ranks(op: str, taken: list[float], device: torch.device) -> list[float]:
    values = torch.tensor(taken, dtype=torch.float64, device=device)
    dist.all_reduce(values, op=getattr(dist.ReduceOp, op))
    return values.tolist()


def size_of(text: str) -> int:
    """Return the number of bytes that `text` says: 4096, 64K, 1G."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes: write 4096, 64K, 16M or 1G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--provider", default="sim", help="sim, cuda, or a library (sim)")
    parser.add_argument("--largest", type=size_of, default=1 << 26, help="bytes, or with K, M, G (64M)")
    parser.add_argument("--sizes", type=size_of, nargs="+", help="these alone, whatever the largest")
    parser.add_argument("--rounds", type=int, default=31, help="of large tensors; of small ones 4 times (31)")
    parser.add_argument("--only", default="", help="collectives whose name contains this")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="write the figures there")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if is_registered():
        raise SystemExit("an installed provider has been claimed: set TORCH_DEVICE_BACKEND_AUTOLOAD=0")
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
    register_backend(PrivateUse1Backend("maca", options.provider))
    torch.set_num_threads(1)
    on_gpu = options.provider == "cuda"
    local = int(os.environ["LOCAL_RANK"])
    plain = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    device = torch.device("maca", local if on_gpu else 0)
    torch.get_device_module("maca").set_device(device)
    beneath = "nccl" if on_gpu else "gloo"
    dist.init_process_group(f"{plain.type}:{beneath},maca:tefl")
    both, other = dist.group.WORLD, dist.new_group(backend=beneath)
    figures = measure(options, [Side(both, device), Side(both, plain), Side(other, plain)])
    if dist.get_rank() == 0 and options.json:
        write(options, figures)
    dist.destroy_process_group()


def rounds_of(nbytes: int, options: argparse.Namespace) -> int:
    large = LARGE_OVER_NCCL if options.provider == "cuda" else LARGE_OVER_GLOO
    rounds = options.rounds if nbytes > large else 4 * options.rounds
    return 8 * rounds if options.provider == "sim" and nbytes in GOALS["sim"] else rounds


def measure(options: argparse.Namespace, sides: list[Side]) -> list[dict[str, Any]]:
    figures = []
    most, most_bytes = MOST_OVER_NCCL if options.provider == "cuda" else MOST_OVER_GLOO
    sizes = options.sizes or [size for size in SIZES if size <= options.largest]
    goals, goals_us = (table.get(options.provider, {}) for table in (GOALS, GOALS_US))
    for name, collective in COLLECTIVES.items():
        if options.only not in name or (name == "send and recv" and dist.get_world_size() == 1):
            continue  # one rank has nobody to send to
        for nbytes in sizes:
            check(name, collective, count_of(min(nbytes, 1 << 24)), sides[0])
            figure = {"collective": name, "bytes": nbytes}
            figure |= {"goal": goals.get(nbytes), "goal_us": goals_us.get(nbytes)}
            calls = max(1, min(most, most_bytes // nbytes))
            figure |= compare(collective, nbytes, sides, calls, rounds_of(nbytes, options))
            figures.append(figure)
            if dist.get_rank() == 0:
                print(LINE.format(**figure), flush=True)
    return figures


def write(options: argparse.Namespace, figures: list[dict[str, Any]]) -> None:
    date = now()
    name = Path(options.provider).stem
    facts = {
        **versions(),
        "provider": name,
        "ranks": dist.get_world_size(),
        "date": date,
        "rounds": options.rounds,
        "figures": figures,
    }
    path = options.json / f"collectives-{name}-{dist.get_world_size()}-ranks-{date[:10]}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
