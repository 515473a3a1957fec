"""Functions whose body does not run when they are called."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["deferred"]

_KINDS = (
    ("a coroutine function", inspect.iscoroutinefunction),
    ("an async generator function", inspect.isasyncgenfunction),
    ("a generator function", inspect.isgeneratorfunction),
)


def deferred(function: Any) -> str | None:
    """Which kind of them a callable is, such as ``"a generator function"``; None where it is ordinary."""
    for candidate in (function, inspect.getattr_static(type(function), "__call__", None)):
        for kind, holds in _KINDS:
            if holds(candidate):
                return kind
    return None
