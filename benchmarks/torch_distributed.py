"""Run PyTorch's own tests of torch.distributed, which ship in its wheel, on the device.

    python benchmarks/torch_distributed.py --provider sim --json FILE

The bodies are those of `torch.testing._internal.distributed.distributed_test`. They are pointed at the device
by two things of PyTorch's own: the default device is ours, so that the tensors they make are, and BACKEND is
"tefl". What asks for CUDA or gloo by name skips itself. Prints what failed, and how many passed and skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from facts import versions

from tefl import _native

KNOWN = {
    "test_barrier(_full_group|_group)?$": "broadcasts a torch.DoubleTensor, which is on the CPU by its type",
    "test_ddp_logging_data_cpu$": "wants times of forward and backward, which torch has on CPU and CUDA",
}
"""Tests that may fail, a pattern of their names -> why. If others fail, so does this script."""

KNOWN_OVER_A_TABLE = {
    "test_(isend|irecv)(_autograd_profiler|_torch_profiler)?$": "asks is_completed() after wait(), which "
    "over a CCL table makes the stream wait and not the host, as NCCL's does",
    "test_send_recv_any_source": "a CCL table has no receive from any source",
}
"""The same, where the provider's own collectives are beneath: over gloo these pass."""

WORLD_SIZE = 3  # what PyTorch's CI takes; some bodies count on exactly 3 or 4


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--provider", default="sim", help="a provider's name or library (sim)")
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--world-size", type=int, default=WORLD_SIZE, help=f"ranks ({WORLD_SIZE})")
    parser.add_argument("--json", type=Path, help="write the outcome of every test there")
    return parser.parse_args()


def prepare(options: argparse.Namespace) -> None:
    """Set what the test module reads when it is imported, and claim the device; no runtime starts here."""
    from tefl.privateuse1 import PrivateUse1Backend, register_backend

    register_backend(PrivateUse1Backend("maca", options.provider, default_autocast_dtype=torch.bfloat16))
    os.environ.update(
        BACKEND="tefl",
        WORLD_SIZE=str(options.world_size),
        TEMP_DIR=tempfile.mkdtemp(),
        MASTER_ADDR="127.0.0.1",
    )
    torch.set_num_threads(1)


def make_case() -> type[unittest.TestCase]:
    """PyTorch's bodies in a case that forks its ranks: each starts the device for itself."""
    from torch.testing._internal.distributed.distributed_test import (
        DistributedTest,
        DistTestCases,
        TestDistBackend,
    )

    for feature in ("plugin", "ddp", "subgroup"):  # what a backend can do is a table there
        DistTestCases.backend_feature[feature].add("tefl")

    class OnDevice(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **kwargs: Any) -> None:
            torch.set_default_device("maca")
            super()._run(rank, test_name, file_name, pipe, **kwargs)

    return OnDevice


class Outcomes(unittest.TestResult):
    """Notes each test's outcome: "pass", or "skip" and "fail" with the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, tuple[str, str]] = {}

    def _note(self, test: unittest.TestCase, outcome: str, reason: str = "") -> None:
        name = test.id().rpartition(".")[2]
        self.outcomes.setdefault(name, (outcome, reason))
        print(f"{outcome:5} {name} {reason[:150]}", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, "pass")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note(test, "skip", reason)

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        self._note(test, "fail", first_cause(str(error[1])))

    addError = addFailure


def first_cause(text: str) -> str:
    """The last line of the first rank's traceback in a report of several."""
    causes = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*$", text, re.M)
    return causes[-1] if causes else text.strip().splitlines()[-1] if text.strip() else "no message"


def main() -> int:
    options = parse_options()
    prepare(options)
    case = make_case()
    names = [n for n in unittest.TestLoader().getTestCaseNames(case) if re.search(options.only, n)]
    result = Outcomes()
    for name in names:
        case(name).run(result)
    counts = Counter(outcome for outcome, _reason in result.outcomes.values())
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in ("pass", "skip", "fail")))
    if options.json:
        write(options, result.outcomes, counts)
    failed = [name for name, (outcome, _reason) in result.outcomes.items() if outcome == "fail"]
    unexplained = [name for name in failed if known_reason(name, has_table()) is None]
    print(f"{len(unexplained)} of the failures without a known reason: {', '.join(unexplained)}")
    return 1 if unexplained else 0


def has_table() -> bool:
    """Whether the provider that was claimed has collectives of its own."""
    return bool(_native.load().ccl.has_table())


def known_reason(name: str, over_a_table: bool) -> str | None:
    """Why this test may fail over what is beneath, None where nobody knows."""
    known = {**KNOWN, **(KNOWN_OVER_A_TABLE if over_a_table else {})}
    return next((reason for pattern, reason in known.items() if re.match(pattern, name)), None)


def write(options: argparse.Namespace, outcomes: dict[str, tuple[str, str]], counts: Counter[str]) -> None:
    """Write counts, the reasons of skips and failures, and the names of what passed."""
    report = {
        **versions(),
        "provider": Path(options.provider).stem,
        "world_size": options.world_size,
        "counts": dict(counts),
        "fail": {
            name: {"says": reason, "because": known_reason(name, has_table())}
            for name, (outcome, reason) in outcomes.items()
            if outcome == "fail"
        },
        "skip": dict(Counter(reason for outcome, reason in outcomes.values() if outcome == "skip")),
        "pass": sorted(name for name, (outcome, _reason) in outcomes.items() if outcome == "pass"),
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
