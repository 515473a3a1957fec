"""Many mixed operations from several threads while the simulator fails some of them: what must still hold.

    python benchmarks/soak.py --operations 1000000 [--threads 8] [--seed 0] [--faults TEXT] [--json FILE]

Each thread works on streams of its own, since an asynchronous error goes to whoever waits for the stream, on
tensors of its own and on its column of a shared matrix. It keeps what every tensor must hold in plain CPU
tensors. An operation that fails may have failed before or after it wrote, so that its tensor is written anew;
one that succeeds must have written what it says. At the end every value is compared, and the statistics must
be back where they started.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from facts import now, versions

#: Errors come about once in a few hundred operations.
FAULTS = ",".join(
    (
        "malloc:7*", "malloc:8*", "malloc:9*", "memcpy:401*", "memcpy_async:307*", "stream_sync:3001*",
        "stream_query:41*", "stream_wait_event:101*", "event_create:53*", "event_record:211*",
        "event_query:401*", "event_sync:67*", "host_malloc:5*", "memory_info:3*",
    )
)  # fmt: skip
ROWS, KEPT, TRIES = 32, 8, 1000


class Worker:
    """One thread's tensors, on the device and as they must be; `run` does operations on them."""

    def __init__(self, number: int, seed: int, shared: Any) -> None:
        import torch

        self.torch = torch
        self.number = number
        self.random = random.Random(seed * 1000 + number)
        self.device = torch.device("maca", number % torch.maca.device_count())
        self.shared = shared[self.device.index]
        self.column = torch.zeros(ROWS)
        self.tensors: list[Any] = [None] * KEPT
        self.expected: list[Any] = [torch.zeros(0)] * KEPT
        self.failures: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.done = 0
        self.other = torch.device("maca", 1 - self.device.index)
        places = (
            self.device,
            self.device,
            self.other,
        )  # the main stream, the side stream, the other device's
        self.streams = [torch.Stream(place) for place in places]

    def run(self, operations: int) -> None:
        """Do that many operations, then check all tensors."""
        self.torch.accelerator.set_stream(self.streams[2])
        with self.streams[0]:
            for slot in range(KEPT):
                self.replace(slot)
            for _ in range(operations):
                self.step()
                self.done += 1
            for slot in range(KEPT):
                self.check(slot, "at the end")
            self.check_column("at the end")
            self.tensors = [None] * KEPT

    def step(self) -> None:
        """Do one operation, chosen at random."""
        slot = self.random.randrange(KEPT)
        operation = self.random.choice(OPERATIONS)
        try:
            operation(self, slot)
        except RuntimeError as error:
            self.failures[kind_of(error)] += 1
            self.recover(slot)

    def persist(self, work: Callable[[], Any]) -> Any:
        """Do something until no fault hits it."""
        for _ in range(TRIES):
            try:
                result = work()
                self.settle()
                return result
            except RuntimeError as error:
                self.failures[kind_of(error)] += 1
        raise TimeoutError(f"every one of {TRIES} tries failed")

    def settle(self) -> None:
        """Wait for what this thread has enqueued; an error of any of it comes up."""
        for stream in self.streams:
            stream.synchronize()

    def recover(self, slot: int) -> None:
        """Write what the failed operation may have left half done."""
        self.replace(slot)
        self.persist(lambda: self.shared[:, self.number].copy_(self.column.to(self.device)))

    def replace(self, slot: int) -> None:
        """Put a new tensor into a slot."""
        size = self.random.choice((1, 16, 700, 5000, 40_000))
        value = self.torch.full((size,), float(self.random.randrange(100)))
        self.expected[slot] = value
        self.tensors[slot] = None  # gone before the next is there
        self.tensors[slot] = self.persist(lambda: value.to(self.device))

    def check(self, slot: int, when: str) -> None:
        """Compare a tensor with what it must hold."""
        found = self.persist(self.tensors[slot].cpu)
        if not self.torch.equal(found, self.expected[slot]):
            self.wrong.append(
                f"thread {self.number}, {when}: slot {slot} is {found}, not {self.expected[slot]}"
            )

    def check_column(self, when: str) -> None:
        """Compare this thread's column of the shared matrix."""
        found = self.persist(lambda: self.shared[:, self.number].cpu())
        if not self.torch.equal(found, self.column):
            self.wrong.append(f"thread {self.number}, {when}: its column is {found}, not {self.column}")


def kind_of(error: RuntimeError) -> str:
    """Name an injected failure; any other error goes on."""
    if "injected" not in str(error):
        raise error
    return type(error).__name__


# ------------------------------------------------------------------------------------- operations --


def add(worker: Worker, slot: int) -> None:
    worker.tensors[slot].add_(1)
    worker.expected[slot] = worker.expected[slot] + 1


def binary(worker: Worker, slot: int) -> None:
    worker.tensors[slot] = worker.tensors[slot] * 0.5 + worker.tensors[slot]
    worker.expected[slot] = worker.expected[slot] * 0.5 + worker.expected[slot]


def half_of_a_view(worker: Worker, slot: int) -> None:
    worker.tensors[slot][::2].fill_(3)
    worker.expected[slot] = worker.expected[slot].clone()
    worker.expected[slot][::2] = 3


def own_column(worker: Worker, slot: int) -> None:
    worker.shared[:, worker.number].add_(1)
    worker.column = worker.column + 1


def pinned_copy(worker: Worker, slot: int) -> None:
    value = float(worker.random.randrange(100))
    pinned = worker.torch.full(worker.expected[slot].shape, value).pin_memory()
    worker.tensors[slot].copy_(pinned, non_blocking=True)
    worker.settle()
    worker.expected[slot] = worker.torch.full_like(worker.expected[slot], value)


def through_the_other_device(worker: Worker, slot: int) -> None:
    back = (worker.tensors[slot].to(worker.other) + 1).to(worker.device)
    worker.settle()
    worker.tensors[slot], worker.expected[slot] = back, worker.expected[slot] + 1


def side_stream(worker: Worker, slot: int) -> None:
    here, side, _ = worker.streams
    side.wait_stream(here)
    with side:
        copy = worker.tensors[slot].clone()
    worker.tensors[slot].record_stream(side)
    here.wait_stream(side)
    worker.settle()
    copy.record_stream(here)
    worker.tensors[slot] = copy


def grow(worker: Worker, slot: int) -> None:
    if worker.expected[slot].numel() > 100_000:
        return replace(worker, slot)
    worker.tensors[slot] = worker.torch.cat([worker.tensors[slot], worker.tensors[slot]])
    worker.expected[slot] = worker.torch.cat([worker.expected[slot], worker.expected[slot]])
    return None


def replace(worker: Worker, slot: int) -> None:
    worker.replace(slot)


def look(worker: Worker, slot: int) -> None:
    worker.check(slot, f"operation {worker.done}")


def gradient(worker: Worker, slot: int) -> None:
    leaf = worker.tensors[slot].detach().clone().requires_grad_()
    (leaf * 3).sum().backward()
    worker.tensors[slot] = leaf.grad
    worker.expected[slot] = worker.torch.full_like(worker.expected[slot], 3)


def reorder(worker: Worker, slot: int) -> None:
    worker.tensors[slot] = worker.tensors[slot].flip(0).sort().values
    worker.expected[slot] = worker.expected[slot].sort().values


def give_back(worker: Worker, slot: int) -> None:
    if worker.random.random() < 0.02:
        worker.torch.accelerator.empty_cache()


OPERATIONS: tuple[Callable[[Worker, int], None], ...] = (
    add, add, add, binary, half_of_a_view, half_of_a_view, own_column, own_column, pinned_copy,
    through_the_other_device, side_stream, grow, replace, look, gradient, reorder, give_back,
)  # fmt: skip


# -------------------------------------------------------------------------------------------- the run --


def soak(operations: int, threads: int, seed: int) -> dict[str, Any]:
    """Run the workers and return what was seen. The device must be claimed as `maca`, with two devices."""
    import torch

    torch.set_num_threads(1)
    workers = make_workers(torch, threads, seed)
    before = statistics(torch)
    start = time.perf_counter()
    shares = [operations // threads + (i < operations % threads) for i in range(threads)]
    crashed: list[str] = []
    running = [
        threading.Thread(target=guarded, args=(worker, share, crashed))
        for worker, share in zip(workers, shares, strict=True)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    seconds = time.perf_counter() - start
    failures = sum((worker.failures for worker in workers), Counter())
    return {
        "operations": sum(worker.done for worker in workers),
        "threads": threads,
        "seed": seed,
        "seconds": round(seconds, 1),
        "failures": dict(failures),
        "wrong": [text for worker in workers for text in worker.wrong] + crashed,
        "before": before,
        "after": statistics(torch),
    }


def make_workers(torch: Any, threads: int, seed: int) -> list[Worker]:
    """Make the workers with what they share; a fault may hit that too."""
    while True:
        try:
            shared = [torch.zeros(ROWS, threads, device=f"maca:{i}") for i in range(2)]
            return [Worker(number, seed, shared) for number in range(threads)]
        except RuntimeError as error:
            kind_of(error)


def guarded(worker: Worker, operations: int, crashed: list[str]) -> None:
    """Run a worker; an error that no fault explains is a finding and not the thread's end alone."""
    try:
        worker.run(operations)
    except Exception as error:  # noqa: BLE001  whatever it is, it is told
        crashed.append(f"thread {worker.number} ended: {type(error).__name__}: {error}")


def statistics(torch: Any) -> dict[str, int]:
    """Return the bytes and blocks that tensors hold, after all that can be freed was."""
    gc.collect()
    for _ in range(3):  # a fault may hit these, too
        try:
            torch.accelerator.empty_cache()
            torch.maca.synchronize(0), torch.maca.synchronize(1)
        except RuntimeError as error:
            kind_of(error)
    stats = [torch.accelerator.memory_stats(i) for i in range(2)]
    keys = ("allocated_bytes.all.current", "allocation.all.current", "active_bytes.all.current")
    return {f"{key} of {i}": stat[key] for i, stat in enumerate(stats) for key in keys} | {
        f"reserved_bytes of {i}": stat["reserved_bytes.all.current"] for i, stat in enumerate(stats)
    }


def facts() -> dict[str, str]:
    """Return when this is run, and by what."""
    import tefl

    return {
        "date": now(),
        "tefl": tefl.__version__,
        **versions(),
        "machine": platform.machine(),
    }


def main() -> int:
    """Print what was seen; return 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", default=FAULTS, help="TEFL_SIM_FAULTS of the run")
    parser.add_argument("--json", type=Path, help="file to write the results to")
    arguments = parser.parse_args()
    os.environ["TEFL_SIM_FAULTS"] = arguments.faults

    import tefl.privateuse1

    tefl.privateuse1.register_backend(tefl.privateuse1.PrivateUse1Backend("maca", "sim"))
    seen = facts() | soak(arguments.operations, arguments.threads, arguments.seed)
    seen["faults"] = arguments.faults
    if arguments.json:
        arguments.json.write_text(json.dumps(seen, indent=1) + "\n")
    print(json.dumps(seen, indent=1))
    return int(bool(seen["wrong"]) or seen["before"] != seen["after"])


if __name__ == "__main__":
    sys.exit(main())
