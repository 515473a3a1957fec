"""Whether a tree's files stand where trunk lets them, judged by their paths before anything is imported."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tefl._errors import nearest

from .rules import overridable, rule_for

__all__ = ["misplaced", "override_of"]

_TOP = "__init__.py"


Misplaced = tuple[str, str, str]
"""Of one file of a tree that trunk has no place for: the kind of finding, its path, what is wrong."""


def override_of(path: str, trunk: Collection[str]) -> bool:
    """Whether a tree's file stands in for trunk's file of the same path."""
    return path in trunk and overridable(path)


def misplaced(tree: Collection[str], trunk: Collection[str]) -> Iterator[Misplaced]:
    """What is wrong with the places of a tree's files; both are relative paths with slashes.

    A helper of the tree's own is a file that trunk does not have and whose name starts with an underscore.
    """
    folders = {_folder(path) for path in trunk}
    for path in sorted(tree):
        if _folder(path) not in folders:
            hint = nearest(_folder(path), folders - {""})
            yield "unknown-path", path, f"trunk has no folder {_folder(path)!r}; {hint}"
        elif path not in trunk and not _name(path).startswith("_"):
            near = [other for other in trunk if _folder(other) == _folder(path) and _name(other) != _TOP]
            beside = [other for other in near if rule_for(other).functions]
            hint = f"{nearest(path, beside)}; a helper of the tree's own starts with an underscore"
            yield "unknown-path", path, f"trunk has no such file; {hint}"
        elif path in trunk and path != _TOP and _name(path) != _TOP and not rule_for(path).functions:
            yield "not-overridable", path, f"{rule_for(path).where} is {rule_for(path).why}"
    yield from _doubly_overridden(tree, trunk)


def _doubly_overridden(tree: Collection[str], trunk: Collection[str]) -> Iterator[Misplaced]:
    """Folders below an overridden one, of which the tree has only a part: trunk's or the tree's part would
    hide the other's."""
    for child in sorted({_folder(path) for path in tree}):
        parent = _folder(child)
        whole = {path for path in trunk if path.startswith(f"{child}/")}
        if parent and rule_for(f"{parent}/").files and not whole <= set(tree):
            missing = ", ".join(sorted(whole - set(tree)))
            first = min(path for path in tree if _folder(path) == child)
            remedy = f"carry the whole of {child}/ (missing: {missing}), or bring the change to trunk"
            yield "double-override", first, f"{parent}/ is overridden as well; {remedy}"


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
