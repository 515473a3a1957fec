"""How a backend specialises the Triton kernels without touching them.

Trunk, ``tefl/kernels/triton``, calls three functions and knows no backend: `spec_path` lets the files of a
backend's tree stand in for those of a folder, `spec` calls a hook of the backend, `spec_func` takes a
function of its own. The backend is that of TEFL_KERNEL_BACKEND, else the active provider's name if it has a
tree, else none. It is chosen when trunk is first imported, for the whole process, and stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, overload

from tefl import _env, kernels
from tefl._errors import SpecError, nearest

from ._spec import rules

if TYPE_CHECKING:
    from ._spec.trees import Tree

# What finds and loads trees is imported where one is asked for: without a backend it costs nothing.

__all__ = [
    "Choice",
    "active_backend",
    "choice",
    "demand_installed",
    "describe",
    "late_for",
    "spec",
    "spec_func",
    "spec_path",
]

F = TypeVar("F", bound=Callable[..., Any])

VARIABLE: Final = "TEFL_KERNEL_BACKEND"
NONE: Final = "none"


class Choice(NamedTuple):
    """Which backend specialises the kernels of this process, and why."""

    backend: str | None
    """None: trunk alone."""
    why: str
    tree: Tree | None = None


_lock = threading.Lock()
_fixed: Choice | None = None
_hooks_checked = False


def active_backend() -> str | None:
    """The backend of this process: the chosen one, or the one that would be chosen now; None is trunk alone.

    `SpecError` where another is asked for than the kernels were imported for.
    """
    return choice().backend


def choice() -> Choice:
    """`active_backend` with the reason and the tree; chooses nothing yet."""
    if _fixed is None:
        return _wanted()
    _demand_unchanged(_fixed)
    return _fixed


def spec_path(path: list[str]) -> None:
    """Called as ``spec_path(__path__)`` by the ``__init__.py`` of a folder: files of the backend's tree with
    the same names stand in for the folder's own.

    `SpecError` where the folder is none of those that the rules let be overridden.
    """
    where = _below_trunk(path)
    if not any(rule.files and rule.where == f"{where}/" for rule in rules.TABLE):
        allowed = ", ".join(rule.where for rule in rules.TABLE if rule.files)
        raise SpecError(f"spec_path({path!r}): only the folders {allowed} of {rules.TRUNK} may be overridden")
    tree = _fix().tree
    if tree is not None and (folder := tree.folder / where).is_dir():
        path.insert(0, str(folder))


def spec(name: str, *args: Any) -> Any:
    """Call the backend's hook of that name and return what it returns; None where it has no such hook."""
    hook = _fetch(name)
    return None if hook is None else hook(*args)


@overload
def spec_func(name: str) -> Callable[..., Any] | None: ...
@overload
def spec_func(name: str, default: F) -> F: ...
def spec_func(name: str, default: Any = None) -> Any:
    """The backend's function of that name, ``default`` itself where it has none."""
    function = _fetch(name)
    return default if function is None else function


def demand_installed() -> None:
    """`SpecError` where TEFL_KERNEL_BACKEND names a backend that is not installed; else nothing happens."""
    if (asked := _env.get(VARIABLE)) not in (None, NONE):
        _tree_of(asked)


def late_for(provider: str | None) -> str | None:
    """Why the kernels of this process are not those that a provider's own tree would give; None where they
    are, or may still be."""
    if provider is None or _fixed is None or _env.get(VARIABLE) or _fixed.backend == provider:
        return None
    if not _has_tree(provider):
        return None
    return (
        f"the kernels were imported for {_called(_fixed.backend)} before provider {provider!r}, which has "
        f"kernels of its own, was active: claim the device first, or set {VARIABLE}"
    )


def describe() -> str | None:
    """What the active backend changes, in one line; None for trunk alone."""
    chosen = choice()
    if chosen.tree is None:
        return None
    from ._spec.listing import answered_hooks, overridden

    changed = [*overridden(chosen.tree), *answered_hooks(chosen.tree)]
    return f"kernels of backend {chosen.backend!r} ({chosen.why}): {', '.join(changed) or 'nothing changed'}"


# --- the choice ---------------------------------------------------------------------------------------------


def _wanted() -> Choice:
    asked = _env.get(VARIABLE)
    if asked == NONE:
        return Choice(None, f"{VARIABLE}={NONE}")
    if asked is not None:
        return Choice(asked, f"{VARIABLE}={asked}", _tree_of(asked))
    provider = kernels.provider_name()
    if provider is not None and _has_tree(provider):
        return Choice(provider, f"provider {provider!r} is active", _tree_of(provider))
    return Choice(None, f"{VARIABLE} is unset and no active provider has a tree")


def _tree_of(backend: str) -> Tree:
    from ._spec.trees import tree_of

    return tree_of(backend)


def _has_tree(provider: str) -> bool:
    from ._spec.trees import names

    return provider in names()


def _fix() -> Choice:
    """Choose, once; `SpecError` where a tree has files that trunk has no place for."""
    global _fixed
    with _lock:
        if _fixed is None:
            wanted = _wanted()
            if wanted.tree is not None:
                _prepare(wanted.tree)
            _fixed = wanted
    _demand_unchanged(_fixed)
    return _fixed


def _demand_unchanged(fixed: Choice) -> None:
    asked = _env.get(VARIABLE)
    if asked is not None and (None if asked == NONE else asked) != fixed.backend:
        raise SpecError(
            f"{VARIABLE}={asked} comes too late: the kernels of this process were imported for "
            f"{_called(fixed.backend)} ({fixed.why}), and that is fixed. Set it before the first kernel runs"
        )
    if late := late_for(kernels.provider_name()):
        raise SpecError(late)


def _called(backend: str | None) -> str:
    return "trunk alone" if backend is None else f"backend {backend!r}"


def _prepare(tree: Tree) -> None:
    from ._spec.layout import misplaced
    from ._spec.loading import mount

    for found in misplaced(rules.files_of(tree.folder), rules.trunk_files()):
        raise SpecError(f"{tree.folder / found.path}, of kernel backend {tree.backend!r}: {found.message}")
    mount(tree)


def _below_trunk(path: list[str]) -> str:
    own = Path(path[-1])
    return own.relative_to(rules.TRUNK).as_posix() if own.is_relative_to(rules.TRUNK) else str(own)


# --- hooks --------------------------------------------------------------------------------------------------


def _fetch(name: str) -> Callable[..., Any] | None:
    tree = _fix().tree
    top = None if tree is None else _top(tree)
    if tree is None or top is None:
        return None
    found = vars(top).get(name)
    if found is None:
        from ._spec.loading import is_half_imported

        if is_half_imported(top):
            raise SpecError(
                f"cycle: {top.__file__}, of kernel backend {tree.backend!r}, imports trunk while it is "
                f"imported itself, and trunk asks it for {name!r}: import trunk inside the functions that "
                "need it"
            )
    elif not callable(found):
        raise SpecError(f"{top.__file__}: {name!r} must be a function, got {found!r}")
    return found


def _top(tree: Tree) -> ModuleType | None:
    global _hooks_checked
    from ._spec.loading import import_top, is_half_imported

    top = import_top(tree)
    if not _hooks_checked and not (top is not None and is_half_imported(top)):
        if top is not None:
            _demand_known_hooks(tree, top)
        _demand_used(tree)
        _hooks_checked = True
    return top


def _demand_known_hooks(tree: Tree, top: ModuleType) -> None:
    known = _hooks_of_trunk()
    for name, value in vars(top).items():
        own = f"{getattr(value, '__module__', '')}.".startswith(f"{tree.package}.")
        if callable(value) and own and not name.startswith("_") and name not in known:
            raise SpecError(
                f"{top.__file__}, of kernel backend {tree.backend!r}: trunk has no hook {name!r}; "
                f"{nearest(name, known)}. A name of the backend's own starts with an underscore"
            )


def _demand_used(tree: Tree) -> None:
    """Files that override nothing are there for the hooks: one that the hooks do not import is a mistake."""
    import sys

    from ._spec.layout import override_of

    trunk = rules.trunk_files()
    for path, file in rules.files_of(tree.folder).items():
        idle = path in trunk and not override_of(path, trunk)
        if idle and rules.module_name(path, tree.package) not in sys.modules:
            raise SpecError(
                f"{file} (kernel backend {tree.backend!r}) overrides nothing ({rules.rule_for(path).why}) "
                "and the tree's __init__.py does not import it"
            )


def _hooks_of_trunk() -> set[str]:
    """The names that trunk's files ask a backend for, read from their text: that is quick."""
    import re

    asked = re.compile(r"\bspec(?:_func)?\(\s*[\"'](\w+)[\"']")
    return {name for path in rules.trunk_files().values() for name in asked.findall(path.read_text())}
