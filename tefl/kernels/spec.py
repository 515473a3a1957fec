"""How a backend specialises the Triton kernels without touching them.

Trunk, ``tefl/kernels/triton``, calls three functions and knows no backend: `spec_path` lets the files of a
backend's tree stand in for those of a folder, `spec` calls a hook of the backend, `spec_func` takes a
function of its own. The backend is that of TEFL_KERNEL_BACKEND, else the active provider's name if it has a
tree, else none. It is chosen when trunk is first imported, for the whole process, and stays.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, overload

from tefl import _env, kernels
from tefl._errors import SpecError
from tefl._log import logger

from ._spec import rules

if TYPE_CHECKING:
    from ._spec.hooks import Wrong
    from ._spec.trees import Tree

# What finds and loads trees is imported where one is asked for: without a backend it costs nothing.

__all__ = [
    "Choice",
    "active_backend",
    "choice",
    "demand_installed",
    "describe",
    "late_for",
    "late_variable",
    "spec",
    "spec_func",
    "spec_path",
    "warn_if_late",
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


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # another thread may have held it


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
    """Call the backend's hook of that name and return what it returns; None where it has no such hook.

    `SpecError` where it raises: what trunk would be without it is not what the backend asks for.
    """
    tree = _fix().tree
    if tree is None:
        return None
    from ._spec import hooks
    from ._spec.loading import noting_failures

    with noting_failures(tree, name):
        return hooks.call(tree, name, *args)


@overload
def spec_func(name: str) -> Callable[..., Any] | None: ...
@overload
def spec_func(name: str, default: F, *, wrong: Wrong | None = None) -> F: ...
def spec_func(name: str, default: Any = None, *, wrong: Wrong | None = None) -> Any:
    """The backend's function of that name, ``default`` itself where it has none.

    ``wrong(answer, *arguments)`` says what is wrong with an answer of the backend's, None where nothing is; a
    call with a wrong answer is a `SpecError`. Answers are remembered by the arguments, which are hashable.

    `SpecError` where the function does not take the arguments that ``default`` takes.
    """
    tree = _fix().tree
    if tree is None:
        return default
    from ._spec import hooks
    from ._spec.loading import noting_failures

    with noting_failures(tree, name):
        found = hooks.fetch(tree, name) if default is None else hooks.fetch_like(tree, name, default)
    if found is None:
        return default
    return found if wrong is None else hooks.checked(tree, name, found, wrong)


def demand_installed() -> None:
    """`SpecError` where TEFL_KERNEL_BACKEND names a backend that is not installed; else nothing happens."""
    if (asked := _env.get(VARIABLE)) not in (None, NONE):
        _tree_of(asked)


def late_for(provider: str | None) -> str | None:
    """Why the kernels of this process are not those that a provider's own tree would give; None where they
    are, or may still be."""
    if provider is None or _fixed is None or _env.get(VARIABLE) or _fixed.backend == provider:
        return None
    if _tree_of_provider(provider) is None:
        return None
    return (
        f"the kernels were imported for {_called(_fixed.backend)} before provider {provider!r}, which has "
        f"kernels of its own, was active: claim the device first, or set {VARIABLE}"
    )


def late_variable() -> str | None:
    """What is wrong where TEFL_KERNEL_BACKEND has come to name another backend than the kernels were imported
    for; None where it has not, or may still choose."""
    return None if _fixed is None else _late_variable(_fixed)


def warn_if_late() -> None:
    """Log `late_variable`, once: a call goes on with the kernels that there are."""
    if (late := late_variable()) is not None:
        _warn(late)


@functools.cache
def _warn(message: str) -> None:
    logger().warning("%s", message)


def describe() -> str | None:
    """What the active backend changes, or why it cannot be used, in one line; None for trunk alone.

    Nothing that came too late is an error here: of a variable this line tells, of a provider `late_for`.
    """
    chosen = _fixed or _wanted()
    late = late_variable()
    if chosen.tree is None:
        return None if late is None else f"kernels of {_called(chosen.backend)}; {late}"
    from ._spec.listing import summary

    said = f"kernels of backend {chosen.backend!r} ({chosen.why}): {summary(chosen.tree)}"
    return said if late is None else f"{said}; {late}"


# --- the choice ---------------------------------------------------------------------------------------------


def _wanted() -> Choice:
    asked = _env.get(VARIABLE)
    if asked == NONE:
        return Choice(None, f"{VARIABLE}={NONE}")
    if asked is not None:
        return Choice(asked, f"{VARIABLE}={asked}", _tree_of(asked))
    provider = kernels.provider_name()
    if provider is not None and (tree := _tree_of_provider(provider)) is not None:
        return Choice(provider, f"provider {provider!r} is active", _placed(tree))
    return Choice(None, f"{VARIABLE} is unset and no active provider has a tree")


def _tree_of(backend: str) -> Tree:
    from ._spec.trees import tree_of

    return _placed(tree_of(backend))


def _tree_of_provider(provider: str) -> Tree | None:
    from ._spec.trees import find_tree

    return find_tree(provider)


def _placed(tree: Tree) -> Tree:
    """The tree itself; `SpecError` where it holds what trunk has no place for, or what is no Python file."""
    from ._spec.contents import contents_of_tree
    from ._spec.layout import misplaced

    files, strays = contents_of_tree(tree)
    wrong = [*strays.items(), *((path, said) for _, path, said in misplaced(files, rules.trunk_files()))]
    for path, message in wrong:
        contents_of_tree.cache_clear()  # who puts it right may call again
        raise SpecError(f"{tree.folder / path}, of kernel backend {tree.backend!r}: {message}")
    return tree


def _fix() -> Choice:
    """Choose, once."""
    global _fixed
    if _fixed is None:
        wanted = _wanted()  # not under the lock: it imports the backend's package, which may import trunk
        with _lock:
            if _fixed is None:
                if wanted.tree is not None:
                    from ._spec.loading import mount, noting_failures

                    with noting_failures(wanted.tree, "all of it"):
                        mount(wanted.tree)
                _fixed = wanted
    _demand_unchanged(_fixed)
    return _fixed


def _demand_unchanged(fixed: Choice) -> None:
    if late := _late_variable(fixed) or late_for(kernels.provider_name()):
        raise SpecError(late)


def _late_variable(fixed: Choice) -> str | None:
    asked = _env.get(VARIABLE)
    if asked is None or (None if asked == NONE else asked) == fixed.backend:
        return None
    return (
        f"{VARIABLE}={asked} comes too late: the kernels of this process were imported for "
        f"{_called(fixed.backend)} ({fixed.why}), and that is fixed. Set it before the first kernel runs"
    )


def _called(backend: str | None) -> str:
    return "trunk alone" if backend is None else f"backend {backend!r}"


def _below_trunk(path: list[str]) -> str:
    own = Path(path[-1])
    return own.relative_to(rules.TRUNK).as_posix() if own.is_relative_to(rules.TRUNK) else str(own)
