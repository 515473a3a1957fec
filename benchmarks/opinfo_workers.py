"""Worker processes, so that a crash is a failure of what crashed: one at a time, restarted where it ended."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from opinfo_compare import Database, OpResult

SCRIPT = str(Path(__file__).with_name("opinfo.py"))
Task = tuple[str, str]  # a dtype, and the name of what is to be checked in it
OP_TIMEOUT_S = 180  # a worker that is silent for longer hangs


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


def worker(database: Database, device: str, fraction: float, module: str | None) -> None:
    """Check what standard input names, a dtype and a name a line; a JSON line for each on standard output."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an operator prints is not a result
    if module:
        importlib.import_module(module)
    claim(device)
    for task in map(str.split, sys.stdin.read().splitlines()):
        print(json.dumps({"task": task}), file=report)
        dtype, name = task
        result = database.check(name, device, getattr(torch, dtype), fraction)
        print(json.dumps({"task": task, "result": asdict(result)}), file=report)


def run_worker(tasks: list[Task], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the lines of one worker; the last may be followed by a crash or by a kill for silence."""
    command = [sys.executable, SCRIPT, "--worker", "--db", arguments.db, "--device", arguments.device]
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
    process.stdin.write("\n".join(map(" ".join, tasks)))
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


def check_all(tasks: list[Task], arguments: argparse.Namespace) -> Iterator[tuple[str, OpResult]]:
    """Yield the dtype and the result of every task, starting a new worker after each crash."""
    left = list(tasks)
    while left:
        current: Task | None = None
        for line in run_worker(left, arguments):
            if "result" in line:
                left.remove(tuple(line["task"]))
                current = None
                yield line["task"][0], OpResult(**line["result"])
            elif "task" in line:
                current = tuple(line["task"])
            elif line["exit"] != 0 and current is None:
                raise SystemExit(f"a worker ended with {line['exit']} between operators:\n{line['stderr']}")
            elif line["exit"] != 0:
                left.remove(current)
                dtype, name = current
                yield dtype, OpResult(name, failed=1, errors=[f"the process ended with {line['exit']}"])
