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

__all__ = ["GROUP", "Found", "Tree", "find_tree", "found", "names", "tree_of"]

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


Found = tuple[str, str, str]
"""An installed backend, of which nothing is imported: its name, where it was found, and what its entry point
says, ``"package.folder"`` or ``"package:attribute"``."""


def found() -> tuple[Found, ...]:
    """Every installed tree, those of this package first; one that is found twice counts once."""
    return tuple(dict.fromkeys([*_in_tree(), *_installed()]))


def names() -> tuple[str, ...]:
    """The installed backends' names, sorted."""
    return tuple(sorted({backend for backend, _, _ in found()}))


def tree_of(backend: str) -> Tree:
    """`find_tree`; `SpecError` where none is installed."""
    tree = find_tree(backend)
    if tree is None:
        installed = f"installed are {', '.join(names())}" if names() else "none is"
        looked = f"an entry point of the group {GROUP!r} makes one known"
        raise SpecError(f"kernel backend {backend!r} is not installed; {installed} ({looked})")
    return tree


@functools.cache
def find_tree(backend: str) -> Tree | None:
    """The tree of a backend, None where none is installed. `SpecError` where two are, or its package does not
    import; what was looked for once is not looked for again."""
    trees = {tree.folder: tree for tree in (_located(*one) for one in found() if one[0] == backend)}
    if len(trees) > 1:
        raise SpecError(_contested(backend, list(trees.values())))
    return next(iter(trees.values()), None)


def _in_tree() -> Iterator[Found]:
    for folder in sorted(_BACKENDS.glob("*/spec")):
        name = folder.parent.name
        yield name, "tefl", f"{_IN_TREE}.{name}.spec"


def _installed() -> Iterator[Found]:
    from importlib import metadata  # 20 ms, only needed once a backend is asked for

    # What `metadata.entry_points(group=GROUP)` gives, in half the time: few distributions mention the group,
    # and the others' entry points are not parsed.
    all_of_them = metadata.distributions()
    named = {d.name: None for d in all_of_them if GROUP in (d.read_text("entry_points.txt") or "")}
    for name in named:
        for entry in metadata.distribution(name).entry_points:  # the first on the path, as Python takes it
            if entry.group == GROUP:
                yield entry.name, name, entry.value


def _located(backend: str, source: str, value: str) -> Tree:
    module, _, attribute = value.replace(" ", "").partition(":")
    where = f"kernel backend {backend!r} of {source} ({GROUP}: {value!r})"
    try:
        if attribute:
            return Tree(backend, *_by_attribute(module, attribute, where), source)
        spec = importlib.util.find_spec(module)
    except SpecError:
        raise
    except (Exception, SystemExit) as error:  # SystemExit too: a package must not end the caller's program
        raise SpecError(f"{where}: its package cannot be imported: {_blamed(error)}") from error
    found_in = list(spec.submodule_search_locations or ()) if spec is not None else []
    folders = list(dict.fromkeys(Path(folder) for folder in found_in if Path(folder).is_dir()))
    if not folders:
        raise SpecError(f"{where}: {module!r} is no folder of an installed package; {_FORM}")
    if len(folders) > 1:
        parts = " and ".join(map(str, folders))
        raise SpecError(f"{where}: {module!r} lies in several folders, {parts}: a tree is one folder")
    return Tree(backend, module, folders[0], source)


def _by_attribute(module: str, attribute: str, where: str) -> tuple[str, Path]:
    """The tree's name as a package, and its folder."""
    value: Any = importlib.import_module(module)
    package_folder = Path(getattr(value, "__path__", [str(Path(value.__file__ or "").parent)])[0])
    for name in attribute.split("."):
        value = getattr(value, name)
    value = value() if callable(value) else value
    folder = Path(value)
    if not folder.is_dir() or not folder.is_relative_to(package_folder):
        raise SpecError(f"{where}: {folder} is no folder inside {package_folder}; {_FORM}")
    return ".".join([module, *folder.relative_to(package_folder).parts]), folder


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
    from .own import hooks_of

    shared = sorted(set.intersection(*(set(hooks_of(tree.folder)) for tree in trees)))
    return f". Both have {', '.join(map(repr, shared))}" if shared else ""
