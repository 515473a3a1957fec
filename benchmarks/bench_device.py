"""What the device itself costs on the simulator, beside the CPU in the same process.

    python benchmarks/bench_device.py [--json FILE]

Two ratios: `torch.add` of two 4x4 tensors, and `torch.empty` of sizes that the allocator's cache serves. Each
side is timed in rounds of 200 calls that alternate between the two; the fastest round of each counts. Times
are for one thread and mean something only beside each other.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import tefl
from tefl.privateuse1 import PrivateUse1Backend, register_backend

CALLS, ROUNDS = 200, 1000
SIZES = (64, 4096, 1 << 18)
"""Bytes of the allocations that are timed."""
ADD_LIMIT, ALLOCATION_LIMIT = 1.6, 1.5
"""Ratios that are wanted at most."""


def microseconds(call: Callable[[], Any]) -> float:
    """Of one call, over one round."""
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - start) / CALLS / 1000


def compare(
    name: str, limit: float, on_device: Callable[[], Any], on_cpu: Callable[[], Any]
) -> dict[str, Any]:
    """Time both sides in turn and return the fastest of each and their ratio."""
    rounds = [(microseconds(on_device), microseconds(on_cpu)) for _ in range(ROUNDS)]
    device, cpu = (min(times) for times in zip(*rounds, strict=True))
    return {"name": name, "device_us": device, "cpu_us": cpu, "ratio": device / cpu, "limit": limit}


def compare_add(device: torch.device) -> dict[str, Any]:
    """Compare `torch.add` of two different 4x4 tensors."""
    on_cpu = torch.ones(4, 4), torch.ones(4, 4)
    on_device = tuple(x.to(device) for x in on_cpu)
    return compare("torch.add 4x4", ADD_LIMIT, lambda: torch.add(*on_device), lambda: torch.add(*on_cpu))


def compare_allocation(device: torch.device, size: int) -> dict[str, Any]:
    """Compare `torch.empty` of `size` bytes, freed at once."""
    cpu = torch.device("cpu")
    return compare(
        f"torch.empty {size} bytes",
        ALLOCATION_LIMIT,
        lambda: torch.empty(size, dtype=torch.uint8, device=device),
        lambda: torch.empty(size, dtype=torch.uint8, device=cpu),
    )


def main() -> None:
    """Print the ratios and, where asked, write them with versions and date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write the results to")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    register_backend(PrivateUse1Backend("maca", "sim"))
    device = torch.device("maca:0")
    results = [compare_add(device), *(compare_allocation(device, size) for size in SIZES)]
    for result in results:
        print(
            "{name:24} {device_us:7.3f} us, CPU {cpu_us:7.3f} us: {ratio:.2f} (limit {limit})".format(
                **result
            )
        )
    if arguments.json:
        facts = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "tefl": tefl.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
        }
        arguments.json.write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
