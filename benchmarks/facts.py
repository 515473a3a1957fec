"""What every results file says of its run: when, and by what."""

from __future__ import annotations

import json
import platform
import re
from datetime import datetime, timezone
from typing import Any

__all__ = ["as_json", "now", "versions"]

_FOLDERS = re.compile(r"(?<![\w/.])(/[\w.@+-]+){2,}/(?=[\w.])")
"""Of an absolute path, with two folders at least."""


def now() -> str:
    """Return the time, like 2026-01-31T12:00:00+00:00; ten characters are for a file's name."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def as_json(facts: dict[str, Any]) -> str:
    """Return the text of a results file. Messages of errors name files of the machine: their folders go."""
    return _FOLDERS.sub("", json.dumps(facts, indent=1)) + "\n"


def versions() -> dict[str, str]:
    """Return the versions of torch and Python. Imports torch."""
    import torch

    return {"torch": torch.__version__, "python": platform.python_version()}
