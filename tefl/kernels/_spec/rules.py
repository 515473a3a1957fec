"""The one table of what a backend may specialise, and the folder that it speaks of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["PACKAGE", "TABLE", "TRUNK", "Rule", "files_of", "module_name", "rule_for"]

PACKAGE = "tefl.kernels.triton"
"""Trunk as a package."""

TRUNK = Path(__file__).parent.parent / "triton"
"""Trunk as a folder."""


@dataclass(frozen=True)
class Rule:
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


def _folder(where: str) -> str:
    return where if where.endswith("/") else f"{where}/"


def files_of(folder: Path) -> dict[str, Path]:
    """The Python files below a folder by their relative path, with slashes."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.py"))}
    return {relative: path for relative, path in found.items() if "__pycache__" not in path.parts}


def module_name(path: str, package: str = PACKAGE) -> str:
    """The module of a file below a package: ``"language/rows.py"`` is ``"<package>.language.rows"``."""
    parts = path.removesuffix(".py").split("/")
    return ".".join([package, *(part for part in parts if part != "__init__")])
