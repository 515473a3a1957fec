"""Run PyTorch's own samples on the device and compare each with the CPU.

    python benchmarks/opinfo.py --device maca --dtype float32 int64 --sample-fraction 0.1 --json out.json
    python benchmarks/opinfo.py --db optimizer --ops Adam

The samples are those of `torch.testing._internal`: operators (OpInfo) and modules (ModuleInfo) forward and
backward, optimizers (OptimizerInfo) over some steps. One that fails on the CPU itself is not counted. What
`opinfo_deviations.py` lists is counted apart; any other failure ends the run with exit status 1, and so do
more than 0.3% of listed samples. Samples run in worker processes, so that a crash is a failure of what
crashed. Without TEFL_PROVIDER the built-in `sim` provider is claimed under the name given by --device.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from opinfo_compare import Database, OpResult
from opinfo_modules import Modules
from opinfo_operators import Operators
from opinfo_optimizers import Optimizers
from opinfo_workers import check_all, worker

DATABASES: dict[str, Database] = {"op": Operators(), "module": Modules(), "optimizer": Optimizers()}
DTYPES = ("float32", "bfloat16", "float64", "int64", "bool", "complex64")
#: Of the samples run unless --dtype says otherwise.
USUAL = {
    "op": ("float32", "bfloat16", "int64", "bool", "complex64"),
    "module": ("float32", "float64", "bfloat16", "complex64"),
    "optimizer": ("float32", "float64", "bfloat16", "complex64"),
}

#: The most samples of a database that may be listed, and of how many at least: of fewer one is too many.
LISTED_LIMIT, LIMIT_HOLDS_FROM = 0.003, 1000


def summary(results: list[OpResult]) -> dict[str, Any]:
    """Return the counts of one dtype, the rate and the operators that fail without being listed."""
    passed, failed = sum(r.passed for r in results), sum(r.failed for r in results)
    deviating = sum(r.deviating for r in results)
    samples = passed + deviating + failed
    return {
        "ops": len(results),
        "ops_passed": sum(r.failed + r.deviating == 0 for r in results),
        "samples": samples,
        "passed": passed,
        "listed": deviating,
        "failed": failed,
        "skipped": sum(r.skipped for r in results),
        "rate": passed / max(1, samples),
        "deviations": {r.op: r.deviating for r in results if r.deviating},
        "failures": {r.op: r.errors for r in results if r.failed},
    }


def share_listed(dtypes: dict[str, dict[str, Any]]) -> tuple[int, int]:
    """Return how many samples of all dtypes are listed, and of how many."""
    return sum(c["listed"] for c in dtypes.values()), sum(c["samples"] for c in dtypes.values())


def too_many_listed(facts: dict[str, Any]) -> bool:
    """Return whether more than LISTED_LIMIT of a run over the whole database are listed."""
    listed, samples = share_listed(facts["dtypes"])
    return samples >= LIMIT_HOLDS_FROM and listed > LISTED_LIMIT * samples and not facts["only"]


COLUMNS = ("ops", "ops_passed", "samples", "passed", "listed", "failed", "skipped")


def print_summary(facts: dict[str, Any]) -> None:
    """Print what fails without being listed, then one line a dtype; `skipped` fail on the CPU too."""
    for dtype, counts in facts["dtypes"].items():
        for name, errors in sorted(counts["failures"].items()):
            print(f"  {dtype} {name}: {len(errors)} failed, first: {errors[0][:200]}")
    print(f"{facts['db']} samples, {facts['device']} against cpu, torch {facts['torch']}")
    print(f"{'dtype':10}" + "".join(f"{column:>11}" for column in COLUMNS) + f"{'rate':>10}")
    for dtype, counts in facts["dtypes"].items():
        cells = "".join(f"{counts[column]:>11}" for column in COLUMNS)
        print(f"{dtype:10}{cells}{counts['rate']:>10.2%}")
    listed, samples = share_listed(facts["dtypes"])
    print(f"listed: {listed} of {samples}, {listed / max(1, samples):.3%} (at most {LISTED_LIMIT:.1%})")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--db",
        choices=DATABASES,
        default="op",
        help="which samples: of operators (default), modules, optimizers",
    )
    parser.add_argument("--device", default="maca", help="the device's name (default: maca)")
    parser.add_argument(
        "--sample-fraction", type=float, default=1.0, help="fraction of each operator's samples (default: 1)"
    )
    parser.add_argument("--ops", nargs="*", help="only these, by name")
    parser.add_argument(
        "--dtype",
        nargs="*",
        choices=DTYPES,
        help="of the samples (default: all that matter to the database)",
    )
    parser.add_argument("--json", type=Path, help="write the summary there too")
    parser.add_argument("--import", dest="module", help="a module to import first; it may claim the device")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.dtype = arguments.dtype or USUAL[arguments.db]
    if not 0 < arguments.sample_fraction <= 1:
        parser.error(f"--sample-fraction is {arguments.sample_fraction}, it must lie in (0, 1]")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        worker(DATABASES[arguments.db], arguments.device, arguments.sample_fraction, arguments.module)
        return
    dtypes = {dtype: summary(results) for dtype, results in check(arguments).items()}
    facts: dict[str, Any] = {
        "db": arguments.db,
        "device": arguments.device,
        "torch": torch.__version__,
        "sample_fraction": arguments.sample_fraction,
        "only": arguments.ops or [],
        "dtypes": dtypes,
    }
    print_summary(facts)
    if arguments.json:
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(any(counts["failed"] for counts in dtypes.values()) or too_many_listed(facts))


def check(arguments: argparse.Namespace) -> dict[str, list[OpResult]]:
    """Return by dtype the results of what is asked for and has samples of it."""
    tasks = [
        (dtype, name)
        for dtype in arguments.dtype
        for name in DATABASES[arguments.db].names(getattr(torch, dtype))
        if not arguments.ops or name in arguments.ops
    ]
    results: dict[str, list[OpResult]] = {dtype: [] for dtype in arguments.dtype}
    for done, (dtype, result) in enumerate(check_all(tasks, arguments), 1):
        results[dtype].append(result)
        if sys.stderr.isatty():
            text = f"\r{dtype} {done}/{len(tasks)} {result.op:50.50}"
            print(text, end="", file=sys.stderr, flush=True)
    return results


if __name__ == "__main__":
    main()
