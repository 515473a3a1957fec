"""Finding the trees of backends: in this package, and in any installed one by an entry point.

A tree holds ``<path below tefl/kernels/triton>`` for what differs from trunk. It is a folder of an importable
package, so that its files can be imported and each has one name.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tefl._errors import SpecError, one_line

__all__ = ["GROUP", "Found", "Tree", "found", "names", "tree_of"]

GROUP = "tefl.kernel_specs"
_IN_TREE = "tefl.kernels.backends"
_BACKENDS = Path(__file__).parent.parent / "backends"
_FORM = f'wanted in {GROUP}: NAME = "package.folder", or "package:attribute" with the folder\'s path'


class Tree(NamedTuple):
    """One backend's tree: its folder, and the package that this folder is."""

    backend: str
    package: str
    folder: Path
    source: str
    """Where it was found: a distribution's name, or "tefl" for one in this package."""


class Found(NamedTuple):
    """A backend that is installed; nothing of it is imported."""

    backend: str
    source: str
    value: str
    """What the entry point says: ``"package.folder"`` or ``"package:attribute"``."""


def found() -> tuple[Found, ...]:
    """Every installed tree, those of this package first; one that is found twice counts once."""
    return tuple(dict.fromkeys([*_in_tree(), *_installed()]))


def names() -> tuple[str, ...]:
    """The installed backends' names, sorted."""
    return tuple(sorted({entry.backend for entry in found()}))


@functools.cache
def tree_of(backend: str) -> Tree:
    """The tree of a backend. `SpecError` where none is installed, two are, or its package does not import;
    what was found once is not looked for again."""
    entries = [entry for entry in found() if entry.backend == backend]
    if not entries:
        installed = f"installed are {', '.join(names())}" if names() else "none is"
        raise SpecError(f"kernel backend {backend!r} is not installed; {installed}")
    trees = {tree.folder: tree for tree in map(_located, entries)}
    if len(trees) > 1:
        raise SpecError(_contested(backend, list(trees.values())))
    return next(iter(trees.values()))


def _in_tree() -> Iterator[Found]:
    for folder in sorted(_BACKENDS.glob("*/spec")):
        name = folder.parent.name
        yield Found(name, "tefl", f"{_IN_TREE}.{name}.spec")


def _installed() -> Iterator[Found]:
    from importlib.metadata import entry_points  # 20 ms, only needed once a backend is asked for

    for entry in entry_points(group=GROUP):
        source = entry.dist.name if entry.dist is not None else "an unnamed distribution"
        yield Found(entry.name, source, entry.value)


def _located(entry: Found) -> Tree:
    module, _, attribute = entry.value.replace(" ", "").partition(":")
    where = f"kernel backend {entry.backend!r} of {entry.source} ({GROUP}: {entry.value!r})"
    try:
        if attribute:
            return _by_attribute(entry, module, attribute, where)
        spec = importlib.util.find_spec(module)
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"{where}: its package cannot be imported: {_blamed(error)}") from error
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not locations:
        raise SpecError(f"{where}: {module!r} is no folder of an installed package; {_FORM}")
    return Tree(entry.backend, module, Path(locations[0]), entry.source)


def _by_attribute(entry: Found, module: str, attribute: str, where: str) -> Tree:
    value: Any = importlib.import_module(module)
    package_folder = Path(getattr(value, "__path__", [str(Path(value.__file__ or "").parent)])[0])
    for name in attribute.split("."):
        value = getattr(value, name)
    value = value() if callable(value) else value
    folder = Path(value)
    if not folder.is_dir() or not folder.is_relative_to(package_folder):
        raise SpecError(f"{where}: {folder} is no folder inside {package_folder}; {_FORM}")
    package = ".".join([module, *folder.relative_to(package_folder).parts])
    return Tree(entry.backend, package, folder, entry.source)


def _blamed(error: BaseException) -> str:
    """The error in one line, with the file that it came from."""
    last, trace = "", error.__traceback__
    while trace is not None:
        last = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return f"{one_line(error)} ({last})" if last and not last.startswith("<") else one_line(error)


def _contested(backend: str, trees: list[Tree]) -> str:
    both = " and ".join(f"{tree.source} ({tree.folder})" for tree in trees)
    return f"kernel backend {backend!r} is in two packages, {both}: uninstall one{_shared_hooks(trees)}"


def _shared_hooks(trees: list[Tree]) -> str:
    from .source import Source

    tops = [tree.folder / "__init__.py" for tree in trees]
    hooks = [set(Source.read(top, "__init__.py").public_names()) if top.exists() else set() for top in tops]
    shared = sorted(set.intersection(*hooks))
    return f". Both have {', '.join(map(repr, shared))}" if shared else ""
