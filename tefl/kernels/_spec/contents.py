"""What lies in a tree's folder: the files that are read, and what could be meant as code and would not be."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .trees import Tree

__all__ = ["BESIDE", "Contents", "contents_of", "contents_of_tree"]

BESIDE = (".md", ".rst", ".txt", ".json", ".toml", ".typed")
"""What may lie beside the Python files: texts, and data that the hooks read."""


class Contents(NamedTuple):
    """By relative paths with slashes."""

    files: dict[str, Path]
    """The Python files."""
    strays: dict[str, str]
    """What else there is and why it is none of them: trunk would run in its place."""


def contents_of(folder: Path) -> Contents:
    """Walk a folder. Names that begin with a dot and ``__pycache__`` are passed over."""
    found = Contents({}, {})
    _walk(folder, "", found, (os.path.realpath(folder),))
    return found


@cache
def contents_of_tree(tree: Tree) -> Contents:
    """Those of a tree that this process uses, looked up once."""
    return contents_of(tree.folder)


def _walk(folder: Path, below: str, found: Contents, within: tuple[str, ...]) -> None:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        found.strays[below.rstrip("/") or "."] = f"cannot be listed: {error.strerror}"
        return
    for entry in entries:
        path = f"{below}{entry.name}"
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if _is_folder(entry):
            _enter(entry, path, found, within)
        elif (reason := _stray(entry)) is not None:
            found.strays[path] = reason
        elif entry.name.endswith(".py"):
            found.files[path] = folder / entry.name


def _enter(entry: os.DirEntry[str], path: str, found: Contents, within: tuple[str, ...]) -> None:
    real = os.path.realpath(entry.path)
    if real in within:
        found.strays[path] = f"is a link to a folder that it lies in, {real}"
    elif "." in entry.name:
        found.strays[path] = "is a folder, and no folder of a package is called so"
    else:
        _walk(Path(entry.path), f"{path}/", found, (*within, real))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def _stray(entry: os.DirEntry[str]) -> str | None:
    """Why a file is neither a Python file that can be read nor one of those that may lie beside."""
    if not os.path.isfile(entry.path):
        return (
            f"is a link that leads nowhere, to {os.readlink(entry.path)}" if entry.is_symlink() else _SPECIAL
        )
    if entry.name.endswith(".py"):
        return None if os.access(entry.path, os.R_OK) else "may not be read"
    if entry.name.endswith(BESIDE):
        return None
    return f"is no Python source: a tree holds .py files, and {', '.join(BESIDE)} beside them"


_SPECIAL = "is neither a file nor a folder"
