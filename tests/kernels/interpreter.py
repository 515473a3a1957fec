"""A process in which Triton interprets its kernels on the host.

Triton decides that for a process when it is imported. The process reads pickled calls, (op, args, kwargs),
from its standard input, and writes the pickled results of ``tefl.kernels.triton.ops.norm``, or an error.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


class Interpreter:
    """Calls of Triton implementations that run in a child process of TRITON_INTERPRET=1."""

    def __init__(self) -> None:
        ours = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], env=os.environ | ours, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, op: str, *args: Any, **kwargs: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump((op, args, kwargs), self.process.stdin)
        self.process.stdin.flush()
        result = pickle.load(self.process.stdout)
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def serve() -> None:
    import torch

    from tefl.kernels.triton.ops import norm

    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not end up among the results
    torch.use_deterministic_algorithms(True)  # torch.empty is full of NaN: what is not written shows
    while True:
        try:
            op, args, kwargs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            result = getattr(norm, op)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - raised again in the parent
            result = RuntimeError(f"{type(error).__name__}: {error}")
        pickle.dump(result, results)
        results.flush()


if __name__ == "__main__":
    serve()
