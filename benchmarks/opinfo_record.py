"""Record what PyTorch's operator samples give under one name of a GPU, in processes that may crash or hang.

A process does the tasks on its standard input, a dtype and an operator a line, and writes a file for each
into --folder. It says on standard output what it begins, so that a hang is known; one that is lost is started
anew behind the operator that it was in.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from opinfo_compare import as_leaf, message, moved, tensors_in
from opinfo_operators import full_name, run_sample, samples_of
from torch.utils._pytree import tree_map


class Result(NamedTuple):
    """Of one sample: where the results lay, and their values on the CPU."""

    places: list[str]
    values: Any
    repeatable: bool  # torch has not warned that the algorithm adds up in any order


Outcome = Result | str  # or how the sample failed
Task = tuple[str, str]  # a dtype and the name of an operator

LOST = 3  # the exit status of a process whose GPU context no longer answers

# ------------------------------------------------------------------------------- in a process that records --


@functools.cache
def ops_of(dtype: torch.dtype, plain: str) -> dict[str, Any]:
    """Return every OpInfo that has samples of `dtype` on the plain device, by full name.

    Not those of torch.cuda.jiterator: it compiles functions for tensors of CUDA by name, and is no operator.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    known = [op for op in op_db if dtype in op.supported_dtypes(plain)]
    return {full_name(op): op for op in known if not op.name.startswith("jiterator_")}


def outcome_of(op: Any, sample: Any, device: str, plain: str) -> Outcome:
    """Run one sample forward and, where it has gradients, backward."""
    try:
        arguments = (sample.input, sample.args, sample.kwargs)
        if device != plain:
            arguments = tree_map(lambda value: moved(value, plain, device), arguments)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            everything = run_sample(op, tree_map(as_leaf, arguments))
        repeatable = not any("deterministic implementation" in str(each.message) for each in caught)
        places = [t.device.type for t in tensors_in(everything)]
        values = tree_map(lambda v: v.detach().cpu() if isinstance(v, torch.Tensor) else v, everything)
        return Result(places, values, repeatable)
    except Exception as error:  # noqa: BLE001 - an operator may fail in any way
        return message(error)


def record_op(op: Any, dtype: torch.dtype, options: argparse.Namespace) -> list[Outcome] | str:
    """Return the outcomes of an operator's samples, or how making them failed.

    They are made on the plain device under either name: what an OpInfo makes may go by the device's name.
    """
    plain = options.plain
    try:
        samples = samples_of(op, plain, dtype, options.sample_fraction, plain)
    except Exception as error:  # noqa: BLE001
        return f"making samples: {message(error)}"
    return [outcome_of(op, sample, options.record, plain) for sample in samples]


def be_repeatable() -> None:
    """Choose, under both names alike, the algorithms that give the same numbers every time.

    Where torch has none it warns, which `outcome_of` notes.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)


def record(options: argparse.Namespace) -> None:
    """Write a file for each task on standard input, in their order."""
    be_repeatable()
    if options.module:
        importlib.import_module(options.module)
    if options.record != options.plain:
        from tefl.privateuse1 import PrivateUse1Backend, register_backend

        register_backend(PrivateUse1Backend(options.record, options.provider))
    for dtype, name in map(str.split, sys.stdin.read().splitlines()):
        print(dtype, name, flush=True)
        op = ops_of(getattr(torch, dtype), options.plain)[name]
        outcomes = record_op(op, getattr(torch, dtype), options)
        answers = gpu_answers(options.plain)
        write(outcomes if answers else "the GPU no longer answers", options.folder, (dtype, name))
        if not answers:
            os._exit(LOST)  # an operator left an error that everything later would fail with


def gpu_answers(plain: str) -> bool:
    """Return whether the GPU can still be used in this process."""
    with contextlib.suppress(RuntimeError):
        if plain == "cuda":
            torch.cuda.synchronize()
        return True
    return False


# ---------------------------------------------------------------------------------------------- the files --


def file_of(folder: Path, task: Task) -> Path:
    """Return where the outcomes of a task are."""
    return folder / "-".join(task)


def write(outcomes: list[Outcome] | str, folder: Path, task: Task) -> None:
    """Write the outcomes of a task; the file is there whole or not at all."""
    written = folder / f"being written by {os.getpid()}"
    torch.save(outcomes, written)
    written.rename(file_of(folder, task))


# ------------------------------------------------------------------------------------- in the main process --


class Ending(NamedTuple):
    """How a recording process ended: its status, the task it was in, and the end of what it said."""

    status: int
    task: Task | None
    said: str


def command(device: str, folder: Path, options: argparse.Namespace) -> list[str]:
    """Return what starts a process that records under the name `device`."""
    arguments = [sys.executable, str(options.script), "--record", device, "--folder", str(folder)]
    arguments += ["--plain", options.plain, "--provider", options.provider]
    arguments += ["--sample-fraction", str(options.sample_fraction)]
    return arguments + (["--import", options.module] if options.module else [])


@contextlib.contextmanager
def killed_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    """Kill the process if the block takes longer."""
    timer = threading.Timer(max(0.0, seconds), process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def run_process(tasks: list[Task], device: str, folder: Path, options: argparse.Namespace) -> Ending:
    """Have one process record the tasks, until it has, is silent for too long, or the time is over."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("TEFL_")}
    env |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    env |= {"PYTHONHASHSEED": "0"}  # some samples come in the order of a set
    said = folder / f"said by {threading.get_ident()}"
    with said.open("w") as errors:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        with subprocess.Popen(command(device, folder, options), text=True, env=env, **pipes) as process:
            feed(process, tasks, options)
            current = follow(process, options)
    return Ending(process.wait(), current, said.read_text(errors="replace")[-2000:])


def feed(process: subprocess.Popen[str], tasks: list[Task], options: argparse.Namespace) -> None:
    """Tell the process its tasks, which it reads when it has started."""
    assert process.stdin is not None
    left = options.deadline - time.monotonic()
    with killed_after(process, left), contextlib.suppress(BrokenPipeError):  # it may have ended
        process.stdin.write("".join(f"{dtype} {name}\n" for dtype, name in tasks))
        process.stdin.close()


def follow(process: subprocess.Popen[str], options: argparse.Namespace) -> Task | None:
    """Return the task that the process was in when it ended, by itself or for taking too long."""
    assert process.stdout is not None
    current: Task | None = None
    while True:
        left = options.deadline - time.monotonic()
        with killed_after(process, left if current is None else min(left, options.op_timeout)):
            line = process.stdout.readline()
        if not line:
            return current
        words = line.split()
        if len(words) == 2:  # else an operator has printed something
            current = (words[0], words[1])


def record_all(tasks: list[Task], device: str, folder: Path, options: argparse.Namespace) -> str | None:
    """Have processes record the tasks while there is time; return what made it give up, None if nothing.

    An operator that its process ends in counts as crashed, and a new process goes on behind it.
    """
    left = list(tasks)
    while left and time.monotonic() < options.deadline:
        before = len(left)
        ending = run_process(left, device, folder, options)
        left = [task for task in left if not file_of(folder, task).exists()]
        if ending.task in left and time.monotonic() < options.deadline:
            write(f"the process ended with {ending.status}", folder, ending.task)
            left.remove(ending.task)
        if len(left) == before and time.monotonic() < options.deadline:
            return f"a process for {device} did nothing and ended with {ending.status}:\n{ending.said}"
    return None
