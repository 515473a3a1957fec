"""Where each module of trunk comes from in this process, and why."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tefl._errors import SpecError, one_line

from .contents import contents_of_tree
from .layout import override_of
from .loading import failure_of
from .own import hooks_of
from .rules import module_name, rule_for, trunk_files
from .source import Source
from .trees import Tree

__all__ = ["Origin", "answered_hooks", "origins", "overridden", "summary"]


@dataclass(frozen=True)
class Origin:
    """One module of trunk."""

    module: str
    origin: str
    """"trunk", or the backend's name where its file stands in."""
    file: Path
    why: str
    hooks: dict[str, str]
    """What the file asks a backend for -> who answers: the backend's name, or "trunk" where nobody does."""


def origins(tree: Tree | None) -> list[Origin]:
    """Every module of trunk as a tree makes it, the tree's own helpers included. `SpecError` where a file of
    the tree cannot be read."""
    try:
        return _origins(tree, set() if tree is None else set(hooks_of(tree.folder)))
    except SyntaxError as error:
        raise SpecError(f"{error.filename} cannot be read: {one_line(error)}") from error


def _origins(tree: Tree | None, offered: set[str]) -> list[Origin]:
    trunk, own = trunk_files(), contents_of_tree(tree).files if tree is not None else {}
    helpers = [path for path in own if path not in trunk and rule_for(path).files]
    found = []
    for path in sorted({*trunk, *helpers}):
        from_tree = path in helpers or (path in own and override_of(path, trunk))
        file = own[path] if from_tree else trunk[path]
        origin = tree.backend if from_tree and tree is not None else "trunk"
        asked = Source.read(file, path).spec_calls
        hooks = {c.name: tree.backend if tree is not None and c.name in offered else "trunk" for c in asked}
        found.append(
            Origin(module_name(path), origin, file, _why(path, path in trunk, tree, from_tree), hooks)
        )
    return found


def summary(tree: Tree) -> str:
    """What a tree changes; or why it cannot be used: what has failed in this process, and where nothing of
    trunk's was imported yet, what reading it finds."""
    if (failure := failure_of(tree)) is not None:
        return f"cannot be used: {failure}"
    if not _trunk_is_imported() and (fault := _fault(tree)) is not None:
        return f"a fault, by `python -m tefl spec check`: {fault}"
    return _changes(tree)


def _trunk_is_imported() -> bool:
    return all(module_name(path) in sys.modules for path in trunk_files() if path.startswith("ops/"))


@cache
def _fault(tree: Tree) -> str | None:
    from .check import HARMLESS, check_tree

    return next((str(found) for found in check_tree(tree.folder) if found.kind not in HARMLESS), None)


@cache
def _changes(tree: Tree) -> str:
    return ", ".join([*overridden(tree), *answered_hooks(tree)]) or "nothing changed"


def overridden(tree: Tree) -> list[str]:
    """Trunk's files that a tree's stand in for."""
    return [path for path in contents_of_tree(tree).files if override_of(path, trunk_files())]


def answered_hooks(tree: Tree) -> list[str]:
    """What trunk asks a backend for and this one has, sorted."""
    asked = {name for origin in origins(tree) for name, who in origin.hooks.items() if who == tree.backend}
    return sorted(asked)


def _why(path: str, in_trunk: bool, tree: Tree | None, from_tree: bool) -> str:
    if not in_trunk:
        return "a helper of the tree's own"
    if from_tree:
        return "overrides trunk's file"
    if tree is None:
        return "no backend is selected"
    if path.endswith("__init__.py") or not rule_for(path).files:
        return "files are not overridden here"
    return "the tree has no such file"
