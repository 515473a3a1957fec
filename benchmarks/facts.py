"""What every results file says of its run: when, and by what."""

from __future__ import annotations

import platform
from datetime import datetime, timezone

__all__ = ["now", "versions"]


def now() -> str:
    """Return the time, like 2026-01-31T12:00:00+00:00; ten characters are for a file's name."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Return the versions of torch and Python. Imports torch."""
    import torch

    return {"torch": torch.__version__, "python": platform.python_version()}
