"""benchmarks/facts.py: what a results file keeps of a message."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from facts import as_json


def test_files_in_messages_lose_their_folders_and_nothing_else_is_lost() -> None:
    facts = {
        "failed": 'File "/opt/a/lib/x.py", line 3, in /usr/lib64/libc.so',
        "us/call": [1.5, "a/b", "7 / 8"],
    }
    wanted = {"failed": 'File "x.py", line 3, in libc.so', "us/call": [1.5, "a/b", "7 / 8"]}
    assert json.loads(as_json(facts)) == wanted
