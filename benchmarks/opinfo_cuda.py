"""Run PyTorch's operator samples under both names of an NVIDIA GPU, and compare every result and gradient.

    python benchmarks/opinfo_cuda.py --json FILE [--dtype float32 int64] [--sample-fraction 0.1] [--jobs 8]

Plain CUDA and the device run in processes of their own, because autograd takes a claimed device for the one
accelerator. Equal seeds make equal samples, for both draw from CUDA's generators. A sample that fails on
plain CUDA is not counted. Exit status 1 if one fails that `opinfo_deviations.py` does not list.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from facts import now
from opinfo_compare import as_leaf, message, tensors_in
from opinfo_operators import UNINITIALISED, full_name, run_sample, samples_of
from torch.utils._pytree import tree_flatten, tree_map

DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64")
DEVICE = "maca"
SHARD_TIMEOUT_S = 900  # a process that has not done its operators by then hangs in one

Outcome = tuple[list[str], Any] | str
"""Of one sample: where the results lay and their values on the CPU; or how it failed."""

# ------------------------------------------------------------------------------- in a process that records --


def ops_of(dtype: torch.dtype, plain: str) -> dict[str, Any]:
    """Return every OpInfo that has samples of `dtype` on the plain device, by full name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {full_name(op): op for op in op_db if dtype in op.supported_dtypes(plain)}


def outcome_of(op: Any, sample: Any) -> Outcome:
    """Run one sample forward and, where it has gradients, backward."""
    try:
        everything = run_sample(op, tree_map(as_leaf, (sample.input, sample.args, sample.kwargs)))
        places = [t.device.type for t in tensors_in(everything)]
        return places, tree_map(lambda v: v.detach().cpu() if isinstance(v, torch.Tensor) else v, everything)
    except Exception as error:  # noqa: BLE001 - an operator may fail in any way
        return message(error)


def record_op(op: Any, device: str, plain: str, dtype: torch.dtype, fraction: float) -> Any:
    """Return the outcomes of an operator's samples, or how making them failed."""
    try:
        samples = samples_of(op, device, dtype, fraction, plain)
    except Exception as error:  # noqa: BLE001
        return f"making samples: {message(error)}"
    return [outcome_of(op, sample) for sample in samples]


def record(arguments: argparse.Namespace) -> None:
    """Write a file for each operator named on standard input, in the order of the names."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if arguments.record != arguments.plain:
        from tefl.privateuse1 import PrivateUse1Backend, register_backend

        register_backend(PrivateUse1Backend(arguments.record, arguments.provider))
    dtype = getattr(torch, arguments.dtype[0])
    ops = ops_of(dtype, arguments.plain)
    for name in sys.stdin.read().split():
        outcomes = record_op(ops[name], arguments.record, arguments.plain, dtype, arguments.sample_fraction)
        written = arguments.folder / "being written"
        torch.save(outcomes, written)
        written.rename(arguments.folder / name)


# ------------------------------------------------------------------------------------- in the main process --


def record_all(names: list[str], device: str, dtype: str, folder: Path, options: argparse.Namespace) -> None:
    """Have a process record the operators; one that it ends in counts as crashed, and a new one goes on."""
    folder.mkdir(parents=True)
    command = [sys.executable, __file__, "--record", device, "--dtype", dtype, "--folder", str(folder)]
    command += ["--plain", options.plain, "--provider", options.provider]
    command += ["--sample-fraction", str(options.sample_fraction)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("TEFL_")}
    left = list(names)
    while left:
        done = subprocess.run(
            command,
            input="\n".join(left),
            env=env | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            capture_output=True,
            text=True,
            timeout=SHARD_TIMEOUT_S,
            check=False,
        )
        left = [name for name in left if not (folder / name).exists()]
        if left and done.returncode == 0:
            raise RuntimeError(f"a process ended without doing {left}")
        if len(left) == len(names) and "Traceback" in done.stderr:
            raise RuntimeError(f"a process did nothing:\n{done.stderr[-2000:]}")
        if left:
            torch.save(f"the process ended with {done.returncode}", folder / left.pop(0))


def compare(name: str, plain: Outcome, ours: Outcome, options: argparse.Namespace) -> str | None:
    """Return None where a sample's outcomes agree, else what is wrong with ours."""
    if isinstance(ours, str):
        return ours
    wanted_places, wanted = plain
    places, got = ours
    if places != [DEVICE if place == options.plain else place for place in wanted_places]:
        return f"results are on {places}"
    try:
        for mine, right in zip(tree_flatten(got)[0], tree_flatten(wanted)[0], strict=True):
            if name in UNINITIALISED and isinstance(right, torch.Tensor):
                mine, right = torch.zeros_like(mine), torch.zeros_like(right)
            torch.testing.assert_close(mine, right, equal_nan=True)
    except Exception as error:  # noqa: BLE001 - also what cannot be compared is no match
        return message(error)
    return None


def judge(
    name: str, dtype: str, plain: Any, ours: Any, options: argparse.Namespace
) -> tuple[Counter[str], list[str]]:
    """Count an operator's samples: passed, listed, failed, skipped; return the errors too."""
    from opinfo_deviations import deviation_of

    counts, errors = Counter[str](), []
    if isinstance(plain, str):
        return Counter(skipped=1), []
    if isinstance(ours, str) or len(ours) != len(plain):
        wrong = ours if isinstance(ours, str) else f"{len(ours)} samples, {len(plain)} on {options.plain}"
        plain, ours = [([], ())], [wrong]
    for wanted, got in zip(plain, ours, strict=True):
        error = None if isinstance(wanted, str) else compare(name.partition(".")[0], wanted, got, options)
        if isinstance(wanted, str):
            counts["skipped"] += 1
        elif error is None:
            counts["passed"] += 1
        elif deviation_of(name, dtype, error) is not None:
            counts["listed"] += 1
        else:
            counts["failed"] += 1
            errors.append(error)
    return counts, errors


def check(dtype: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Record one dtype under both names and compare."""
    known = list(ops_of(getattr(torch, dtype), options.plain))
    names = [name for name in known if not options.ops or name in options.ops]
    shards = [names[i :: options.jobs] for i in range(options.jobs) if names[i :: options.jobs]]
    with ThreadPoolExecutor(options.jobs) as pool:
        tasks = [
            pool.submit(record_all, shard, device, dtype, folder / dtype / f"{device}{i}", options)
            for i, shard in enumerate(shards)
            for device in (options.plain, DEVICE)
        ]
        for task in tasks:
            task.result()
    total, failures = Counter[str](), {}
    for i, shard in enumerate(shards):
        for name in shard:
            plain, ours = (
                torch.load(folder / dtype / f"{device}{i}" / name, weights_only=False)
                for device in (options.plain, DEVICE)
            )
            counts, errors = judge(name, dtype, plain, ours, options)
            total += counts
            if errors:
                failures[name] = errors
    samples = total["passed"] + total["listed"] + total["failed"]
    facts = {key: total[key] for key in ("passed", "listed", "failed", "skipped")}
    return {"ops": len(names), "samples": samples, **facts, "failures": failures}


def parse_arguments() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--dtype", nargs="*", choices=DTYPES, default=DTYPES, help="of the samples (all)")
    add("--sample-fraction", type=float, default=1.0, help="fraction of each operator's samples (1)")
    add("--ops", nargs="*", help="only these operators, by OpInfo name")
    add("--jobs", type=int, default=4, help="processes at a time (4)")
    add("--provider", default="cuda", help="the built-in provider (cuda)")
    add("--plain", default="cuda", help="the device to compare with (cuda)")
    add("--json", type=Path, help="write the counts there too")
    add("--record", help=argparse.SUPPRESS)
    add("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    if options.record:
        record(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        dtypes = {dtype: check(dtype, options, Path(folder)) for dtype in options.dtype}
    for dtype, counts in dtypes.items():
        for name, errors in counts["failures"].items():
            print(f"  {dtype} {name}: {len(errors)} failed, first: {errors[0][:200]}")
        print(dtype, {key: value for key, value in counts.items() if key != "failures"})
    if options.json:
        facts = {
            "date": now(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "torch": torch.__version__,
            "device": DEVICE,
            "against": options.plain,
            "sample_fraction": options.sample_fraction,
            "dtypes": dtypes,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(any(counts["failed"] for counts in dtypes.values()))


if __name__ == "__main__":
    main()
