"""Run PyTorch's own operator samples on the device and compare each with the CPU, forward and backward.

    python benchmarks/opinfo.py --device maca --dtype float32 int64 --sample-fraction 0.1 --json out.json

The samples are those of `torch.testing._internal` (OpInfo). One that fails on the CPU itself is not counted.
Failures that `opinfo_deviations.py` lists are counted apart; any other ends the run with exit status 1.
Operators run in worker processes, so that a crash is a failure of the operator it happened in. Without
TEFL_PROVIDER the built-in `sim` provider is claimed under the name given by --device.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from opinfo_deviations import deviation_of
from torch.utils._pytree import tree_flatten, tree_map

DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64")
OP_TIMEOUT_S = 180  # a worker that is silent for longer hangs
SEED = 0
#: Their results are whatever the memory held: only shape, dtype and device can be compared.
UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)


@dataclass
class OpResult:
    """The outcome of one operator's samples. A sample that passes forward and fails backward has failed."""

    op: str
    passed: int = 0
    deviating: int = 0  # failed as opinfo_deviations.py says
    failed: int = 0
    skipped: int = 0  # the CPU cannot run them either
    errors: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------------------------- one sample --


def to_cpu(value: Any, device: str) -> Any:
    """Return the CPU's twin of a sample's argument: a leaf over a copy of the same storage."""
    if isinstance(value, torch.Tensor) and value.device.type == device and value.layout == torch.strided:
        storage = value.untyped_storage().cpu()
        twin = torch.empty(0, dtype=value.dtype).set_(
            storage, value.storage_offset(), value.shape, value.stride()
        )
        twin = twin.conj() if value.is_conj() else twin
        twin = torch._neg_view(twin) if value.is_neg() else twin
        return twin.requires_grad_(value.requires_grad)
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().requires_grad_(value.requires_grad)
    if isinstance(value, str | torch.device) and str(value).partition(":")[0] == device:
        return "cpu"  # factories are told where to put their result
    return value


def as_leaf(value: Any) -> Any:
    """Return a tensor argument as a leaf of a new graph, others as they are."""
    if isinstance(value, torch.Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    return value


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested value, in order."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def run_sample(op: Any, arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> tuple[Any, list[Any]]:
    """Return the operator's result and the gradients of every argument that wants one."""
    input, args, kwargs = arguments
    torch.manual_seed(SEED)
    result = op(input, *args, **kwargs)
    outputs = [t for t in tensors_in(result) if t.requires_grad]
    inputs = [t for t in tensors_in(arguments) if t.requires_grad]
    if not outputs or not inputs:
        return result, []
    generator = torch.Generator().manual_seed(SEED)
    cotangents = [torch.randn(t.shape, dtype=t.dtype, generator=generator).to(t.device) for t in outputs]
    return result, list(torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True))


def result_device(sample: Any) -> str:
    """Return the type of the device that results belong on: the one the sample names, else its operands'."""
    if sample.kwargs.get("device") is not None:
        return torch.device(sample.kwargs["device"]).type
    operands = tensors_in((sample.input, sample.args, sample.kwargs))
    return next((t.device.type for t in operands if t.device.type != "cpu"), "cpu")


def compare(name: str, got: Any, wanted: Any, device: str) -> None:
    """Raise unless `got` lies on `device` and equals the CPU's `wanted`."""
    for got_leaf, wanted_leaf in zip(tree_flatten(got)[0], tree_flatten(wanted)[0], strict=True):
        if not isinstance(wanted_leaf, torch.Tensor):
            torch.testing.assert_close(got_leaf, wanted_leaf, equal_nan=True)
            continue
        if got_leaf.device.type != device:
            raise AssertionError(f"a result is on {got_leaf.device}")
        if name in UNINITIALISED:
            got_leaf, wanted_leaf = torch.zeros_like(got_leaf), torch.zeros_like(wanted_leaf)
        torch.testing.assert_close(got_leaf.cpu(), wanted_leaf, equal_nan=True)


def message(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def check_sample(op: Any, sample: Any, device: str) -> str | None:
    """Return None if the sample passes, "skipped" if the CPU fails too, else what went wrong."""
    arguments = tree_map(as_leaf, (sample.input, sample.args, sample.kwargs))
    twins = tree_map(lambda value: to_cpu(value, device), arguments)
    try:
        wanted = run_sample(op, twins)
    except Exception:  # noqa: BLE001
        return "skipped"  # whatever it is, it is not the device's
    try:
        compare(op.name, run_sample(op, arguments), wanted, result_device(sample))
    except Exception as error:  # noqa: BLE001 - an operator may fail in any way
        return message(error)
    return None


def samples_of(op: Any, device: str, dtype: torch.dtype, fraction: float) -> list[Any]:
    """Return an operator's samples on `device`, or a repeatable fraction of them, drawn at random."""
    torch.manual_seed(SEED)
    differentiable = dtype in op.supported_backward_dtypes("cpu")
    samples = list(op.sample_inputs(device, dtype, requires_grad=differentiable))
    if fraction < 1:
        samples = random.Random(full_name(op)).sample(samples, max(1, round(len(samples) * fraction)))
    return samples


def check_op(op: Any, device: str, dtype: torch.dtype, fraction: float) -> OpResult:
    """Run an operator's samples. Not being able to make them on the device is one failure."""
    result = OpResult(full_name(op))
    try:
        samples = samples_of(op, device, dtype, fraction)
    except Exception as error:  # noqa: BLE001
        count_failure(result, f"making samples: {message(error)}", dtype)
        return result
    for sample in samples:
        error = check_sample(op, sample, device)
        result.passed += error is None
        result.skipped += error == "skipped"
        if error not in (None, "skipped"):
            count_failure(result, error, dtype)
    return result


def count_failure(result: OpResult, error: str, dtype: torch.dtype) -> None:
    """Count a failed sample: apart if it is listed, else with its error."""
    if deviation_of(result.op, dtype_name(dtype), error) is not None:
        result.deviating += 1
    else:
        result.failed += 1
        result.errors.append(error)


# ------------------------------------------------------------------------------------------ workers --


def full_name(op: Any) -> str:
    """Return an OpInfo's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def ops_of(dtype: torch.dtype) -> dict[str, Any]:
    """Return every OpInfo that has samples of `dtype`, by full name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {full_name(op): op for op in op_db if dtype in op.supported_dtypes("cpu")}


def claim(device: str) -> None:
    """Make `device` available in this process, unless an imported module has."""
    from tefl.privateuse1 import PrivateUse1Backend, is_registered, register_backend

    if is_registered():
        return
    if os.environ.get("TEFL_PROVIDER"):
        import _tefl_autoload

        _tefl_autoload.autoload()
        return
    register_backend(PrivateUse1Backend(name=device, provider="sim"))


def worker(device: str, dtype: torch.dtype, fraction: float, module: str | None) -> None:
    """Check the operators named on standard input, one JSON line each on standard output."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an operator prints is not a result
    if module:
        importlib.import_module(module)
    claim(device)
    ops = ops_of(dtype)
    for name in sys.stdin.read().split():
        print(json.dumps({"start": name}), file=report)
        print(json.dumps(asdict(check_op(ops[name], device, dtype, fraction))), file=report)


def run_worker(names: list[str], dtype: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the lines of one worker; the last may be followed by a crash or by a kill for silence."""
    command = [sys.executable, __file__, "--worker", "--device", arguments.device, "--dtype", dtype]
    command += ["--sample-fraction", str(arguments.sample_fraction)]
    command += ["--import", arguments.module] if arguments.module else []
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors = process.stderr
    tail: list[str] = []
    drain = threading.Thread(target=lambda: tail.extend(errors.readlines()[-5:]), daemon=True)
    drain.start()
    process.stdin.write("\n".join(names))
    process.stdin.close()
    restart, cancel = watchdog(process.kill)
    for line in process.stdout:
        restart()
        yield json.loads(line)
    cancel()
    yield {"exit": process.wait(), "stderr": "".join(tail)}


def watchdog(action: Callable[[], None]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return (restart, cancel) of a timer that performs `action` after OP_TIMEOUT_S seconds."""
    timer = [threading.Timer(OP_TIMEOUT_S, action)]
    timer[0].start()

    def restart() -> None:
        timer[0].cancel()
        timer[0] = threading.Timer(OP_TIMEOUT_S, action)
        timer[0].start()

    return restart, lambda: timer[0].cancel()


def check_all(names: list[str], dtype: str, arguments: argparse.Namespace) -> Iterator[OpResult]:
    """Yield the result of every operator, starting a new worker after each crash."""
    left = list(names)
    while left:
        current = ""
        for line in run_worker(left, dtype, arguments):
            if "start" in line:
                current = line["start"]
            elif "exit" not in line:
                left.remove(line["op"])
                current = ""
                yield OpResult(**line)
            elif line["exit"] != 0 and not current:
                raise SystemExit(f"a worker ended with {line['exit']} between operators:\n{line['stderr']}")
            elif line["exit"] != 0:
                left.remove(current)
                yield OpResult(current, failed=1, errors=[f"the process ended with {line['exit']}"])


# ------------------------------------------------------------------------------------------- report --


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


COLUMNS = ("ops", "ops_passed", "samples", "passed", "listed", "failed", "skipped")


def print_summary(facts: dict[str, Any]) -> None:
    """Print what fails without being listed, then one line a dtype; `skipped` fail on the CPU too."""
    for dtype, counts in facts["dtypes"].items():
        for name, errors in sorted(counts["failures"].items()):
            print(f"  {dtype} {name}: {len(errors)} failed, first: {errors[0][:200]}")
    print(f"{facts['device']} against cpu, torch {facts['torch']}, forward and backward")
    print(f"{'dtype':10}" + "".join(f"{column:>11}" for column in COLUMNS) + f"{'rate':>10}")
    for dtype, counts in facts["dtypes"].items():
        cells = "".join(f"{counts[column]:>11}" for column in COLUMNS)
        print(f"{dtype:10}{cells}{counts['rate']:>10.2%}")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="maca", help="the device's name (default: maca)")
    parser.add_argument(
        "--sample-fraction", type=float, default=1.0, help="fraction of each operator's samples (default: 1)"
    )
    parser.add_argument("--ops", nargs="*", help="only these operators, by OpInfo name")
    parser.add_argument(
        "--dtype",
        nargs="*",
        choices=DTYPES,
        default=DTYPES,
        help=f"of the samples (default: {', '.join(DTYPES)})",
    )
    parser.add_argument("--json", type=Path, help="write the summary there too")
    parser.add_argument("--import", dest="module", help="a module to import first; it may claim the device")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if not 0 < arguments.sample_fraction <= 1:
        parser.error(f"--sample-fraction is {arguments.sample_fraction}, it must lie in (0, 1]")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        dtype = getattr(torch, arguments.dtype[0])
        worker(arguments.device, dtype, arguments.sample_fraction, arguments.module)
        return
    dtypes = {name: summary(check_dtype(name, arguments)) for name in arguments.dtype}
    facts = {"device": arguments.device, "torch": torch.__version__, "dtypes": dtypes}
    print_summary(facts)
    if arguments.json:
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(any(counts["failed"] for counts in dtypes.values()))


def check_dtype(dtype: str, arguments: argparse.Namespace) -> list[OpResult]:
    """Return the results of the operators that are asked for and have samples of `dtype`."""
    known = list(ops_of(getattr(torch, dtype)))
    names = [name for name in arguments.ops if name in known] if arguments.ops else known
    results = []
    for result in check_all(names, dtype, arguments):
        results.append(result)
        if sys.stderr.isatty():
            text = f"\r{dtype} {len(results)}/{len(names)} {result.op:50.50}"
            print(text, end="", file=sys.stderr, flush=True)
    return results


if __name__ == "__main__":
    main()
