"""A tree's hooks: fetched by name from its top ``__init__.py``, with errors that name the file."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tefl._errors import SpecError, nearest, one_line

from .contents import contents_of_tree
from .layout import override_of
from .loading import import_top, is_half_imported, noting_failures, raising_spec_errors
from .rules import module_name, rule_for, trunk_files
from .text import hooks_of_trunk
from .trees import Tree

__all__ = ["Wrong", "call", "checked", "fetch", "fetch_like"]

Wrong = Callable[..., "str | None"]
"""Of an answer and the arguments that it was given for: what is wrong with it, None where nothing is."""

_checked: set[Tree] = set()


def fetch(tree: Tree, name: str) -> Callable[..., Any] | None:
    """The tree's function of that name, None where it has none."""
    top = _top(tree)
    found = None if top is None else vars(top).get(name)
    if top is None or callable(found):
        return found
    if found is not None:
        raise SpecError(f"{top.__file__}: {name!r} must be a function, got {found!r}")
    if is_half_imported(top):
        raise SpecError(
            f"cycle: {_said(tree, top)}, is asked for {name!r} before its own import has ended, by what it "
            "imports: import trunk inside the functions that need it, and leave spec_func to trunk"
        )
    return None


def fetch_like(tree: Tree, name: str, default: Callable[..., Any]) -> Callable[..., Any] | None:
    """The same; `SpecError` where it does not take the arguments that ``default`` takes."""
    found = fetch(tree, name)
    if found is not None:
        wanted = inspect.signature(default)
        try:
            inspect.signature(found).bind(*wanted.parameters)
        except TypeError as error:
            where = _said(tree, sys.modules[tree.package])
            raise SpecError(
                f"{where}: trunk calls {name}{inspect.signature(found)} with {wanted}: {error}"
            ) from error
        except ValueError:  # a builtin that does not tell its arguments
            pass
    return found


def checked(tree: Tree, name: str, function: Callable[..., Any], wrong: Wrong) -> Callable[..., Any]:
    """The function with a look at each answer, remembered as the functions that trunk asks for are pure.

    The `SpecError` of a bad answer names the tree; what else the function raises is a failure of the call.
    """
    where = _said(tree, sys.modules[tree.package])

    @functools.lru_cache(maxsize=1024)
    def answer(*args: Any) -> Any:
        with noting_failures(tree, name):
            try:
                found = function(*args)
            except SystemExit as error:
                raise SpecError(f"{where}: {name} failed: {one_line(error)}") from error
            if (said := wrong(found, *args)) is not None:
                raise SpecError(f"{where}: {name}({', '.join(map(str, args))}) answers {found!r}: {said}")
            return found

    return functools.update_wrapper(answer, function)


def call(tree: Tree, name: str, *args: Any) -> Any:
    """Call the tree's hook of that name; None where it has none."""
    hook = fetch(tree, name)
    if hook is None:
        return None
    with raising_spec_errors(f"{_said(tree, sys.modules[tree.package])}: {name} failed"):
        return hook(*args)


def _said(tree: Tree, top: ModuleType) -> str:
    return f"{top.__file__}, of kernel backend {tree.backend!r}"


def _top(tree: Tree) -> ModuleType | None:
    top = import_top(tree)
    if tree not in _checked and not (top is not None and is_half_imported(top)):
        if top is not None:
            _demand_known_hooks(tree, top)
        _demand_used(tree)
        _checked.add(tree)
    return top


def _demand_known_hooks(tree: Tree, top: ModuleType) -> None:
    """A function of the backend's own package that trunk does not ask for is a misspelt hook."""
    known, listed = hooks_of_trunk(), getattr(top, "__all__", ())
    package = tree.package.rpartition(".")[0] or tree.package
    for name, value in vars(top).items():
        own = name in listed or f"{getattr(value, '__module__', '')}.".startswith(f"{package}.")
        if callable(value) and own and not name.startswith("_") and name not in known:
            raise SpecError(
                f"{_said(tree, top)}: trunk has no hook {name!r}; {nearest(name, known)}. A name of the "
                "backend's own starts with an underscore"
            )


def _demand_used(tree: Tree) -> None:
    """Files that override nothing are there for the hooks: one that the hooks do not import is a mistake."""
    trunk = trunk_files()
    for path, file in contents_of_tree(tree).files.items():
        idle = path in trunk and not override_of(path, trunk)
        if idle and module_name(path, tree.package) not in sys.modules:
            raise SpecError(
                f"{file} (kernel backend {tree.backend!r}) overrides nothing ({rule_for(path).why}) "
                "and the tree's __init__.py does not import it"
            )
