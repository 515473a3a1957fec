"""The names of ``transformer_engine.plugin.core``, for plugins that were written for TE-FL.

`install` makes them importable under that name where the real package is not. Nobody gets them by default: a
program that looks for Transformer Engine must not find it because tefl was imported. While plugins are loaded
they are there for those that ask for them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tefl.dispatch import OpRegistry

from ._finder import FINDER

__all__ = ["for_plugins", "install"]


def install() -> None:
    """Make ``transformer_engine.plugin.core`` and its submodules importable. Where the real ones are, those
    are found first and nothing changes. May be called again."""
    FINDER.kept = True
    if FINDER not in sys.meta_path:
        sys.meta_path.append(FINDER)


@contextlib.contextmanager
def for_plugins() -> Iterator[Callable[[OpRegistry], Any]]:
    """Supplies the names inside, and from then on if anybody has imported them. May be nested.

    Gives the function that makes, of tefl's registry, what a plugin is given: TE-FL's once one has asked.
    """
    if FINDER not in sys.meta_path:
        sys.meta_path.append(FINDER)
    FINDER.users += 1
    try:
        yield _presented
    finally:
        FINDER.users -= 1
        if not FINDER.users and not FINDER.kept and FINDER in sys.meta_path:
            sys.meta_path.remove(FINDER)


def _presented(registry: OpRegistry) -> Any:
    if FINDER.supplied:
        return _theirs(registry)
    return _Presented(registry)


def _theirs(registry: OpRegistry) -> Any:
    from .registry import OpRegistry as TheirRegistry

    return TheirRegistry(registry)


class _Presented(OpRegistry):
    """tefl's registry, for a plugin that has not asked for TE-FL's names yet. One that asks only when it
    registers finds TE-FL's methods here too."""

    def __init__(self, registry: OpRegistry) -> None:
        self.__dict__ = registry.__dict__  # the same registry, not another one

    def __getattr__(self, name: str) -> Any:
        if not FINDER.supplied:
            raise AttributeError(f"'OpRegistry' object has no attribute {name!r}")
        return getattr(_theirs(self), name)
