"""Imports of a tree's files that nothing would satisfy, told without importing anything."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Iterator

from .own import TOP, OwnImports
from .rules import PACKAGE
from .source import Source

__all__ = ["unfound_imports"]


def unfound_imports(source: Source, own: OwnImports, given: Collection[str]) -> Iterator[tuple[int, str]]:
    """(line, message) for every module that a file needs when it is imported and that is neither in the tree,
    nor beside it, nor installed. ``given`` are packages that count as installed.

    Modules of trunk are looked up elsewhere. Of an installed package only the package itself is.
    """
    for imported in source.imports:
        if not imported.at_import or imported.optional or f"{imported.module}.".startswith(f"{PACKAGE}."):
            continue
        if imported.level:
            at_hand = source.path != TOP or own.is_beside(imported.module, imported.level)
            missing = None if at_hand else "." * imported.level + imported.module
        else:
            at_hand = imported.module.partition(".")[0] in given or own.is_beside(imported.module, 0)
            missing = None if at_hand or _is_installed(imported.module) else imported.module
        if missing is not None:
            yield imported.line, f"module {missing!r} is neither installed nor in the tree"


def _is_installed(module: str) -> bool:
    """Whether a module's package can be found; of tefl itself, whether the module can."""
    top = module if module.startswith("tefl.") else module.partition(".")[0]
    try:
        return top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):  # a parent that is no package, or a half-made module
        return False
