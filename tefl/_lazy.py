"""Functions that are imported when they are first called, so that listing them costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["Lazy"]


class Lazy:
    """A callable that stands for ``module.name`` and imports the module at its first call.

    Nothing is checked before: a typo shows then.
    """

    __slots__ = ("_function", "module", "name", "provenance")

    def __init__(self, module: str, name: str, provenance: Callable[[], str | None] | None = None) -> None:
        self.module = module
        self.name = name
        self.provenance = provenance
        """Tells, for a decision's text, whose code the function runs; None where nothing needs saying."""
        self._function: Callable[..., Any] | None = None

    def resolve(self) -> Callable[..., Any]:
        """The function itself, imported if need be."""
        if self._function is None:
            self._function = getattr(import_module(self.module), self.name)
        return self._function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._function or self.resolve())(*args, **kwargs)

    def native_kernel(self, *call: Any) -> Any:
        """The function's own ``native_kernel``, see `OpImpl`; None where it has none."""
        made_by = getattr(self.resolve(), "native_kernel", None)
        return None if made_by is None else made_by(*call)

    def __repr__(self) -> str:
        return f"<{self.module}.{self.name}, imported on first call>"
