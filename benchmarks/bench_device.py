"""What the device itself costs beside its alias in the same process: sim beside the CPU, cuda beside CUDA.

    python benchmarks/bench_device.py [--provider cuda] [--json FILE]

Two ratios: `torch.add` of two 4x4 tensors, and `torch.empty` of sizes that the allocator's cache serves. Each
side is timed in rounds of 200 calls that alternate between the two; the fastest round of each counts. Beside
it stands the median of the rounds' own ratios, for machines whose speed wanders. Times are for one thread and
mean something only beside each other.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from beside_alias import start
from facts import now, versions

import tefl

CALLS, ROUNDS = 200, 1000
SIZES = (64, 4096, 1 << 18)
"""Bytes of the allocations that are timed."""
ADD_LIMITS, ALLOCATION_LIMIT = {"cpu": 1.6, "cuda": 1.08}, 1.5
"""Ratios that are wanted at most."""


def microseconds(call: Callable[[], Any]) -> float:
    """Of one call, over one round. What it leaves to a GPU is not counted, and done before the next round."""
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    spent = time.perf_counter_ns() - start
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return spent / CALLS / 1000


def compare(
    name: str, limit: float, on_device: Callable[[], Any], on_alias: Callable[[], Any]
) -> dict[str, Any]:
    """Time both sides in turn and return the fastest of each and their ratio."""
    rounds = [(microseconds(on_device), microseconds(on_alias)) for _ in range(ROUNDS)]
    device, alias = (min(times) for times in zip(*rounds, strict=True))
    return {
        "name": name,
        "device_us": device,
        "alias_us": alias,
        "ratio": device / alias,
        "median_ratio": statistics.median(ours / theirs for ours, theirs in rounds),
        "limit": limit,
    }


def compare_add(device: torch.device, alias: torch.device) -> dict[str, Any]:
    """Compare `torch.add` of two different 4x4 tensors."""
    a, b = (torch.ones(4, 4, device=device) for _ in range(2))
    c, d = (torch.ones(4, 4, device=alias) for _ in range(2))
    limit = ADD_LIMITS[alias.type]
    return compare("torch.add 4x4", limit, lambda: torch.add(a, b), lambda: torch.add(c, d))


def compare_allocation(device: torch.device, alias: torch.device, size: int) -> dict[str, Any]:
    """Compare `torch.empty` of `size` bytes, freed at once."""
    return compare(
        f"torch.empty {size} bytes",
        ALLOCATION_LIMIT,
        lambda: torch.empty(size, dtype=torch.uint8, device=device),
        lambda: torch.empty(size, dtype=torch.uint8, device=alias),
    )


def main() -> None:
    """Print the ratios and, where asked, write them with versions and date."""
    arguments, alias = start(__doc__)
    device = torch.device("maca:0")
    results = [compare_add(device, alias), *(compare_allocation(device, alias, size) for size in SIZES)]
    for result in results:
        print(
            "{name:24} {device_us:7.3f} us, {alias} {alias_us:7.3f} us: {ratio:.2f} (limit {limit}), "
            "median {median_ratio:.2f}".format(alias=alias.type, **result)
        )
    if arguments.json:
        facts = {
            "date": now(),
            "tefl": tefl.__version__,
            **versions(),
            "machine": platform.machine(),
            "provider": arguments.provider,
        }
        arguments.json.write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
