"""Run PyTorch's operator samples under both names of an NVIDIA GPU, and compare every result and gradient.

    python benchmarks/opinfo_cuda.py --json FILE [--dtype float32 int64] [--sample-fraction 0.1] [--jobs 14]

Plain CUDA and the device run in processes of their own, because autograd takes a claimed device for the one
accelerator. A sample that fails on plain CUDA is not counted, and one that differs where torch warns that
plain CUDA has no deterministic algorithm is counted apart, as `unrepeatable`. Exit status 1 if one fails that
`opinfo_deviations.py` does not list, or if operators could not be run in the time of --limit; the file is
written in any case.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from facts import now, versions
from opinfo_compare import SEED, message
from opinfo_deviations import ON_CUDA, deviation_of
from opinfo_operators import UNINITIALISED
from opinfo_record import Outcome, Result, Task, file_of, ops_of, record, record_all
from torch.utils._pytree import tree_flatten

DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64")
DEVICE = "maca"
COUNTED = ("passed", "listed", "unrepeatable", "failed", "skipped")
NOT_CLOSE = "are not close!"


def compare(name: str, plain: Outcome, ours: Outcome, options: argparse.Namespace) -> str | None:
    """Return None where a sample's outcomes agree, else what is wrong with ours."""
    if isinstance(ours, str):
        return ours
    if ours.places != [DEVICE if place == options.plain else place for place in plain.places]:
        return f"results are on {ours.places}"
    try:
        for mine, right in zip(tree_flatten(ours.values)[0], tree_flatten(plain.values)[0], strict=True):
            if name in UNINITIALISED and isinstance(right, torch.Tensor):
                mine, right = torch.zeros_like(mine), torch.zeros_like(right)
            torch.testing.assert_close(mine, right, equal_nan=True)
    except Exception as error:  # noqa: BLE001 - also what cannot be compared is no match
        return message(error)
    return None


def judge(
    name: str, dtype: str, plain: Any, ours: Any, options: argparse.Namespace
) -> tuple[Counter[str], list[str]]:
    """Count an operator's samples: passed, listed, unrepeatable, failed, skipped; return the errors too."""
    counts, errors = Counter[str](), []
    if isinstance(plain, str):
        return Counter(skipped=1), []
    if isinstance(ours, str) or len(ours) != len(plain):
        wrong = ours if isinstance(ours, str) else f"{len(ours)} samples, {len(plain)} on {options.plain}"
        plain, ours = [Result([], (), True)], [wrong]
    for wanted, got in zip(plain, ours, strict=True):
        error = None if isinstance(wanted, str) else compare(name.partition(".")[0], wanted, got, options)
        if isinstance(wanted, str):
            counts["skipped"] += 1
        elif error is None:
            counts["passed"] += 1
        elif deviation_of(name, dtype, error, ON_CUDA) is not None:
            counts["listed"] += 1
        elif error.endswith(NOT_CLOSE) and not wanted.repeatable:
            counts["unrepeatable"] += 1
        else:
            counts["failed"] += 1
            errors.append(error)
    return counts, errors


def record_both(tasks: list[Task], folder: Path, options: argparse.Namespace) -> list[str]:
    """Record all tasks under both names, half of the processes each; return what made any give up."""
    shuffled = random.Random(SEED).sample(tasks, len(tasks))  # what is slow is spread over the processes
    each = max(1, options.jobs // 2)
    for device in (options.plain, DEVICE):
        (folder / device).mkdir()
    with ThreadPoolExecutor(2 * each) as pool:
        running = [
            pool.submit(record_all, shuffled[i::each], device, folder / device, options)
            for i in range(each)
            for device in (options.plain, DEVICE)
        ]
        return [why for task in running if (why := task.result()) is not None]


def summary(dtype: str, names: Iterable[str], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Compare what was recorded of one dtype, and count."""
    total, failures, not_run = Counter[str](), {}, []
    for name in names:
        files = [file_of(folder / device, (dtype, name)) for device in (options.plain, DEVICE)]
        if not all(file.exists() for file in files):
            not_run.append(name)
            continue
        plain, ours = (torch.load(file, weights_only=False) for file in files)
        counts, errors = judge(name, dtype, plain, ours, options)
        total += counts
        if errors:
            failures[name] = errors
    samples = total.total() - total["skipped"]
    counted = {key: total[key] for key in COUNTED}
    return {"samples": samples, **counted, "ops_not_run": not_run, "failures": failures}


def check(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Record under both names and compare; return the counts by dtype, and what made processes give up."""
    names = {
        dtype: [
            name for name in ops_of(getattr(torch, dtype), options.plain) if name in (options.ops or [name])
        ]
        for dtype in options.dtype
    }
    tasks = [(dtype, name) for dtype, of_dtype in names.items() for name in of_dtype]
    gave_up = record_both(tasks, folder, options)
    counts = {
        dtype: {"ops": len(of_dtype), **summary(dtype, of_dtype, folder, options)}
        for dtype, of_dtype in names.items()
    }
    return counts, gave_up


def parse_arguments() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--dtype", nargs="*", choices=DTYPES, default=DTYPES, help="of the samples (all)")
    add("--sample-fraction", type=float, default=1.0, help="fraction of each operator's samples (1)")
    add("--ops", nargs="*", help="only these operators, by OpInfo name")
    add("--jobs", type=int, default=4, help="processes at a time, half for each name (4)")
    add("--limit", type=float, default=3600, help="seconds for the recording; the rest is not run (3600)")
    add("--op-timeout", type=float, default=60, help="seconds an operator may take; longer is a hang (60)")
    add("--provider", default="cuda", help="the built-in provider (cuda)")
    add("--plain", default="cuda", help="the device to compare with (cuda)")
    add("--import", dest="module", help="a module that the recording processes import first")
    add("--json", type=Path, help="write the counts there too")
    add("--record", help=argparse.SUPPRESS)
    add("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.script = Path(__file__).resolve()
    options.deadline = time.monotonic() + options.limit
    return options


def print_counts(dtypes: dict[str, Any], gave_up: list[str]) -> None:
    """Print what failed, then a line a dtype."""
    for why in gave_up:
        print(why)
    for dtype, counts in dtypes.items():
        for name, errors in counts["failures"].items():
            print(f"  {dtype} {name}: {len(errors)} failed, first: {errors[0][:200]}")
        line = {key: value for key, value in counts.items() if key not in ("failures", "ops_not_run")}
        print(dtype, line | {"ops_not_run": len(counts["ops_not_run"])})


def main() -> None:
    options = parse_arguments()
    if options.record:
        record(options)
        return
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        dtypes, gave_up = check(options, Path(folder))
    facts = {
        "date": now(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        **versions(),
        "device": DEVICE,
        "against": options.plain,
        "sample_fraction": options.sample_fraction,
        "seconds": round(time.monotonic() - started),
        "dtypes": dtypes,
        "gave_up": gave_up,
    }
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    print_counts(dtypes, gave_up)
    sys.exit(any(counts["failed"] or counts["ops_not_run"] for counts in dtypes.values()))


if __name__ == "__main__":
    main()
