"""A process that has imported torch and forks itself for each piece of code it is given.

A device is claimed once per process, so its tests need a process each; importing torch for each of them
would take more time than all the tests. Reads one JSON object a line from stdin, {"code", "environment",
"timeout"}, and answers with one, {"code", "stdout", "stderr"}. The child skips the interpreter's own end,
which is for tests in a fresh interpreter.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, NoReturn

import torch  # noqa: F401  what all the children share

TIMED_OUT = -1


def main() -> str | None:
    """Serve until stdin ends; in a forked child, return the code to run."""
    gc.freeze()  # a child that collects garbage would copy all of torch's objects
    for line in iter(sys.stdin.readline, ""):
        task = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if child == 0:
                become(task, out.fileno(), err.fileno())
                return task["code"]
            code = wait(child, task["timeout"])
            answer = {"code": code, "stdout": text(out), "stderr": text(err)}
        print(json.dumps(answer), flush=True)
    return None


def become(task: dict[str, Any], out: int, err: int) -> None:
    """Give the child its own output, environment and module path."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ.update(task["environment"])
    path = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [*path, *(place for place in sys.path if place not in path)]
    sys.argv[:] = ["-c"]


def wait(child: int, timeout: float) -> int:
    """Return the child's exit code, TIMED_OUT if it had to be killed with what it had started."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMED_OUT


def text(file: Any) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def run(code: str) -> NoReturn:
    """Run `code` as the main program and end at once: taking torch down would cost half a second."""
    status = 1
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  as an interpreter does with what its main program raises
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    code = main()
    if code is not None:
        run(code)
