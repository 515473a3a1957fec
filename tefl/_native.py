"""The compiled part: loaded on first use, and checked against the torch that runs it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["build_facts", "check_torch", "load", "load_if_built"]

_REMEDY = "build it with `pip install --no-build-isolation .` in tefl's source folder"


def load() -> ModuleType:
    """Import and return ``tefl._C``; an ImportError says how to build it."""
    try:
        return importlib.import_module("tefl._C")
    except ImportError as error:
        raise ImportError(f"tefl's compiled part cannot be loaded ({error}); {_REMEDY}") from error


def load_if_built() -> ModuleType | None:
    """``tefl._C``, None where it was not built. One that was built and cannot be loaded is an ImportError."""
    if not any(Path(__file__).parent.glob("_C*.so")):
        return None
    return load()


def build_facts() -> dict[str, Any] | None:
    """What setup.py wrote down at build: torch, debug, nvcc or cuda_skipped. None where nothing was built."""
    path = Path(__file__).with_name("_build.json")
    if not path.exists():
        return None
    facts: dict[str, Any] = json.loads(path.read_text())
    return facts


def check_torch(facts: dict[str, Any] | None, running: str) -> None:
    """Raise ImportError where the compiled part was built for another major.minor of torch."""
    if facts is None or _minor(facts["torch"]) == _minor(running):
        return
    raise ImportError(
        f"tefl was built for torch {facts['torch']}, the torch that runs is {running}: install torch "
        f"{_minor(facts['torch'])}, or {_REMEDY} with this torch"
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
