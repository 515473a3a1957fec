"""Where each module of trunk comes from in this process, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tefl._errors import SpecError, one_line

from .layout import override_of
from .own import hooks_of
from .rules import TRUNK, files_of, module_name, rule_for
from .source import Source
from .trees import Tree

__all__ = ["Origin", "answered_hooks", "origins", "overridden"]


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
    trunk, own = files_of(TRUNK), files_of(tree.folder) if tree is not None else {}
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


def overridden(tree: Tree) -> list[str]:
    """Trunk's files that a tree's stand in for."""
    return [path for path in files_of(tree.folder) if override_of(path, files_of(TRUNK))]


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
