"""The one table of what a backend may specialise, and the folder that it speaks of."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "PACKAGE",
    "TABLE",
    "TRUNK",
    "Rule",
    "files_of",
    "module_name",
    "overridable",
    "rule_for",
    "trunk_files",
]

PACKAGE = "tefl.kernels.triton"
"""Trunk as a package."""

TRUNK = Path(__file__).parent.parent / "triton"
"""Trunk as a folder."""


class Rule(NamedTuple):
    """What a backend may do to one place of trunk.

    ``where`` is relative to trunk, a folder with a slash at its end. ``files``: the folder's own
    ``__init__.py`` calls ``spec_path``, and whole files of a tree stand in for trunk's. ``functions``: files
    there may call ``spec`` and ``spec_func``.
    """

    where: str
    files: bool
    functions: bool
    why: str


TABLE = (
    Rule("./", False, False, "never overridden: it is the parent of all"),
    Rule("ops/", True, True, "`spec_path` (whole files), and `spec`/`spec_func` inside"),
    Rule("language/", True, True, "`spec_path` (whole files), and `spec`/`spec_func` inside"),
    Rule("_utils.py", False, True, "`spec`/`spec_func` only"),
)


def rule_for(path: str) -> Rule:
    """The rule for a file, by its path below trunk such as ``"language/rows.py"``."""
    fitting = [rule for rule in TABLE[1:] if path == rule.where or path.startswith(_folder(rule.where))]
    return max(fitting, key=lambda rule: len(rule.where), default=TABLE[0])


def overridable(path: str) -> bool:
    """Whether a tree's file may stand in for trunk's: all below an open folder but what opens it."""
    rule = rule_for(path)
    return rule.files and path != f"{rule.where}__init__.py"


def _folder(where: str) -> str:
    return where if where.endswith("/") else f"{where}/"


def files_of(folder: Path) -> dict[str, Path]:
    """The Python files below a folder by their relative path, with slashes."""
    found = {}
    for where, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        below = Path(where).relative_to(folder).as_posix()
        for name in sorted(names):
            if name.endswith(".py"):
                found[name if below == "." else f"{below}/{name}"] = Path(where, name)
    return found


@cache
def trunk_files() -> dict[str, Path]:
    """Those of trunk, looked up once."""
    return files_of(TRUNK)


def module_name(path: str, package: str = PACKAGE) -> str:
    """The module of a file below a package: ``"language/rows.py"`` is ``"<package>.language.rows"``."""
    parts = path.removesuffix(".py").split("/")
    return ".".join([package, *(part for part in parts if part != "__init__")])
