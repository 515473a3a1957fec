"""What the device's host time costs in a training step of the demo model, operator by operator.

    python benchmarks/bench_step.py [--provider cuda] [--json FILE]

Notes the operators of one step (forward, backward, clipping, AdamW) below autograd, then times each with the
step's own arguments on the device and on its alias, in turn; the fastest round of each counts. The table is
in the order of what an operator adds to a step. On sim the model is tiny, so that little but host time is
left, and the whole step is timed beside the CPU's as well; for the cuda provider step_turns.py does that.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from beside_alias import start
from demo_step import make_step
from facts import now, versions
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tefl.privateuse1 import as_alias

SIZES = {"sim": "tiny", "cuda": "demo"}
CALLS, ROUNDS, STEPS = 20, 30, 100


@dataclass
class Call:
    """An operator with one form of arguments, and how often a step calls it."""

    operator: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    count: int = 0


class Recorder(TorchDispatchMode):
    """Notes what is called below autograd; calls of one form are one entry."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, Call] = {}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        form = (operator, *map(form_of, tree_leaves((args, options))))
        self.calls.setdefault(form, Call(operator, args, options)).count += 1
        return operator(*args, **options)


def form_of(value: Any) -> Any:
    """What makes two calls' arguments alike for the host."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    return repr(value)


def microseconds(call: Callable[[], Any], calls: int) -> float:
    """Of one call, over one round. What it leaves to a device is not counted, and done before the next."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    spent = time.perf_counter_ns() - start
    torch.accelerator.synchronize()
    return spent / calls / 1000


def fastest(on_device: Callable[[], Any], on_alias: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Time both in turn; microseconds of the fastest round of each."""
    rounds = [(microseconds(on_device, calls), microseconds(on_alias, calls)) for _ in range(ROUNDS)]
    device, alias = (min(times) for times in zip(*rounds, strict=True))
    return device, alias


def on_alias(value: Any, alias: torch.device) -> Any:
    """Return an argument as the alias device gets it."""
    if isinstance(value, torch.Tensor) and value.device.type == "maca":
        return as_alias(value.detach())
    return alias if isinstance(value, torch.device) and value.type == "maca" else value


@torch.no_grad()
def time_call(call: Call, alias: torch.device) -> tuple[float, float]:
    """Microseconds of the call on the device and on its alias."""
    arguments, options = tree_map(lambda value: on_alias(value, alias), (call.arguments, call.options))
    return fastest(
        lambda: call.operator(*call.arguments, **call.options),
        lambda: call.operator(*arguments, **options),
        CALLS,
    )


def time_operators(step: Callable[[], None], alias: torch.device) -> list[dict[str, Any]]:
    """Each operator's calls a step and what they take together, in microseconds."""
    with Recorder() as recorder:
        step()
    rows: dict[str, dict[str, Any]] = defaultdict(lambda: {"calls": 0, "device_us": 0.0, "alias_us": 0.0})
    for call in recorder.calls.values():
        device_us, alias_us = time_call(call, alias)
        row = rows[str(call.operator)]
        row["calls"] += call.count
        row["device_us"] += call.count * device_us
        row["alias_us"] += call.count * alias_us
    named = [{"operator": name, **row} for name, row in rows.items()]
    return sorted(named, key=lambda row: row["alias_us"] - row["device_us"])


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table and its sum."""
    print(f"{'operator':56} calls   device    alias     more  (us a step)")
    total = {key: sum(row[key] for row in rows) for key in ("calls", "device_us", "alias_us")}
    for row in [*rows, {"operator": "all of them", **total}]:
        more = row["device_us"] - row["alias_us"]
        print(
            "{operator:56} {calls:5d} {device_us:8.1f} {alias_us:8.1f} {more:8.1f}".format(more=more, **row)
        )


def main() -> None:
    """Print table and ratio and, where asked, write them with versions and date."""
    arguments, alias = start(__doc__)
    step = make_step(SIZES[arguments.provider], "maca")
    for _ in range(3):
        step()
    rows = time_operators(step, alias)
    show(rows)
    facts: dict[str, Any] = {"date": now(), **versions(), "provider": arguments.provider, "operators": rows}
    if alias.type == "cpu":
        plain = make_step(SIZES[arguments.provider], "cpu")
        device_us, alias_us = fastest(step, plain, STEPS // ROUNDS)
        facts["step"] = {"device_us": device_us, "alias_us": alias_us, "ratio": device_us / alias_us}
        print(f"a whole step: {device_us:.0f} us, {alias} {alias_us:.0f} us: {device_us / alias_us:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
