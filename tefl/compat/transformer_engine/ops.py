"""TE-FL's module of ops: each an attribute, called in Transformer Engine's convention."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tefl._errors import nearest

from ._dtypes import DType
from .manager import OpManager, get_default_manager, reset_default_manager
from .registry import OpRegistry

__all__ = [
    "DType",
    "TEFLBackendBase",
    "TEFLModule",
    "get_manager",
    "get_registry",
    "get_tefl_module",
    "reset_registry",
    "reset_tefl_module",
]


class TEFLBackendBase(ABC):
    """What TE-FL's backends derive from: a class with a method for each op that it implements."""

    @abstractmethod
    def is_available(self) -> bool:
        """Whether the backend can run here."""


class TEFLModule:
    """Every op as an attribute: ``module.rmsnorm_fwd(input, weight, eps, None, None, otype, 0, False)``."""

    DType = DType

    def __init__(self, manager: OpManager | None = None) -> None:
        self._manager = manager if manager is not None else get_default_manager()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in (known := self._operators()):
            raise AttributeError(f"tefl has no op {name!r} yet; {nearest(name, known)}")
        return functools.partial(self._manager.call, name)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self, name)
        return function

    def __dir__(self) -> list[str]:
        return ["DType", *self._operators()]

    def _operators(self) -> list[str]:
        self._manager.ensure_initialized()
        return self._manager.registry.list_operators()


_module: TEFLModule | None = None


def get_tefl_module() -> TEFLModule:
    """The module of ops over the default manager."""
    global _module
    if _module is None:
        _module = TEFLModule()
    return _module


def reset_tefl_module() -> None:
    """Make the next `get_tefl_module` a new one, over the default manager of then."""
    global _module
    _module = None


def get_manager() -> OpManager:
    """The default manager."""
    return get_default_manager()


def get_registry() -> OpRegistry:
    """The default manager's registry."""
    return get_default_manager().registry


def reset_registry() -> None:
    """Start a default manager of its own, with a registry of its own."""
    reset_default_manager()
    reset_tefl_module()
