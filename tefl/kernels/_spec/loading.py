"""How the files of the active tree load: under trunk's name, once, and with their path in every error."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

from tefl._errors import SpecError, one_line

from .contents import contents_of_tree
from .layout import override_of
from .rules import module_name, overridable, trunk_files
from .text import exported_names
from .trees import Tree

__all__ = [
    "failure_of",
    "import_top",
    "is_half_imported",
    "mount",
    "noting_failures",
    "raising_spec_errors",
]


@contextlib.contextmanager
def raising_spec_errors(what: str) -> Iterator[None]:
    """Any error inside becomes a `SpecError` that starts with these words: it is the backend's fault, and no
    reason to run something else."""
    try:
        yield
    except SpecError:
        raise
    except (Exception, SystemExit) as error:  # SystemExit too: a tree must not end the caller's program
        raise SpecError(f"{what}: {one_line(error)}") from error


_failures: dict[tuple[Tree, str], str] = {}


@contextlib.contextmanager
def noting_failures(tree: Tree, what: str) -> Iterator[None]:
    """Keep the `SpecError` that comes out, for `failure_of`, until the same thing succeeds."""
    try:
        yield
    except SpecError as error:
        _failures[tree, what] = str(error)
        raise
    _failures.pop((tree, what), None)


def failure_of(tree: Tree) -> str | None:
    """Why the kernels of this process do not load or run with a tree; None where nothing of it has failed."""
    return next((error for (failed, _), error in _failures.items() if failed == tree), None)


class _TreeLoader(SourceFileLoader):
    """Loads one file of a tree.

    A file in a folder that trunk lets be overridden is the module of trunk's name. Under the name that it has
    in its own package it is that same module, not a second one.
    """

    def __init__(self, tree: Tree, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._tree = tree
        self._alias_of: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        trunk = self._trunk_name()
        if trunk is None or trunk == spec.name:
            return None
        module = importlib.import_module(trunk)
        self._alias_of = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._alias_of is not None:
            module.__spec__ = self._alias_of
            return
        with noting_failures(self._tree, module.__name__):
            self._execute(module)

    def _execute(self, module: ModuleType) -> None:
        of_backend = f"{self.path}, of kernel backend {self._tree.backend!r},"
        with raising_spec_errors(f"{of_backend} cannot be imported"):
            super().exec_module(module)
        if self._trunk_name() is not None:
            missing = [name for name in exported_names(self._below_tree()) if not hasattr(module, name)]
            if missing:
                raise SpecError(f"{of_backend} lacks {', '.join(missing)}, which trunk's file exports")

    def _trunk_name(self) -> str | None:
        path = self._below_tree()
        return module_name(path) if overridable(path) else None

    def _below_tree(self) -> str:
        return Path(self.path).relative_to(self._tree.folder).as_posix()


def mount(tree: Tree) -> None:
    """Have every module of a tree loaded by the loader above.

    `SpecError` where one that stands in for trunk's has been imported under a name of its own before.
    """
    loader = functools.partial(_TreeLoader, tree)
    files = contents_of_tree(tree).files
    for path, file in files.items():
        name = module_name(path, tree.package)
        if override_of(path, trunk_files()) and name in sys.modules:
            raise SpecError(
                f"{file} was imported as {name} before trunk was: import {module_name(path)} instead"
            )
    for folder in {str(file.parent) for file in files.values()}:
        # An entry of this cache is what the import system asks for a folder; only this folder is concerned.
        sys.path_importer_cache[folder] = FileFinder(folder, (loader, list(SOURCE_SUFFIXES)))  # type: ignore[arg-type]


def import_top(tree: Tree) -> ModuleType | None:
    """The package of a tree, which holds its hooks; None where the tree has no ``__init__.py``."""
    path = tree.folder / "__init__.py"
    if not path.exists():
        return None
    with raising_spec_errors(f"{path}, of kernel backend {tree.backend!r}, cannot be imported"):
        return importlib.import_module(tree.package)


def is_half_imported(module: ModuleType) -> bool:
    """Whether a module's body has not run to its end: what it does not have yet may still come."""
    return bool(getattr(module.__spec__, "_initializing", False))
