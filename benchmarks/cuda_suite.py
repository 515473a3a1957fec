"""Run the device's tests on the cuda provider and write what passed, failed and was skipped, file by file.

    python benchmarks/cuda_suite.py --json FILE [pytest arguments]

Exit status 1 if any test failed. `failures` holds the end of each failure's message, `skips` how often each
reason was given.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from facts import as_json, now, versions

ROOT = Path(__file__).parent.parent
SUITE = "tests/privateuse1"


def run(arguments: list[str], report: Path) -> None:
    """Run the tests; pytest's own output goes through."""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", "-q", "--provider", "cuda", f"--junitxml={report}"]
    subprocess.run([*command, *(arguments or [SUITE])], cwd=ROOT, env=env, check=False)


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    """Return what became of a test, and why unless it passed."""
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return ("skipped" if kind == "skipped" else "failed"), str(found.get("message") or "")
    return "passed", ""


def summary(report: Path) -> dict[str, Any]:
    """Return the counts of pytest's report, in all and by file."""
    files: dict[str, Counter[str]] = {}
    skips: Counter[str] = Counter()
    failures: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = str(case.get("classname")).rpartition(".")[2]
        result, why = outcome(case)
        files.setdefault(file, Counter())[result] += 1
        if result == "skipped":
            skips[why] += 1
        elif result == "failed":
            failures[f"{file}::{case.get('name')}"] = why.strip()[-500:]
    total: Counter[str] = sum(files.values(), Counter())
    return {
        "total": dict(total),
        "files": {name: dict(counts) for name, counts in sorted(files.items())},
        "skips": dict(skips.most_common()),
        "failures": failures,
    }


def main() -> None:
    """Run, count, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file to write the counts to")
    arguments, rest = parser.parse_known_args()
    facts = {
        "date": now(),
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        **versions(),
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        run(rest, report)
        facts |= summary(report)
    arguments.json.write_text(as_json(facts))
    print(facts["total"])
    sys.exit("failed" in facts["total"])


if __name__ == "__main__":
    main()
