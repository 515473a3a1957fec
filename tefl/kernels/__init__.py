"""The implementations that come with tefl, by technique: one folder each, one file a family of ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Protocol

from tefl.dispatch.types import OpImpl

__all__ = ["provider_name", "register_builtins", "set_provider_name", "spec"]

_TABLES = ("triton", "flaggems", "cuda", "reference")
"""Folders with a ``table.py`` whose ``implementations()`` lists `OpImpl`s and imports none of them."""


class _Registry(Protocol):
    def register_many(self, impls: Iterable[OpImpl]) -> None: ...


def register_builtins(registry: _Registry) -> None:
    """Add every built-in implementation to the registry. Imports neither triton nor the native module."""
    for folder in _TABLES:
        registry.register_many(import_module(f"{__name__}.{folder}.table").implementations())


_provider_name: Callable[[], str | None] | None = None


def set_provider_name(name: Callable[[], str | None]) -> None:
    """Say which function tells the active provider's own name, None where there is none."""
    global _provider_name
    _provider_name = name


def provider_name() -> str | None:
    """The own name of the provider that has claimed the device; None where none has."""
    return _provider_name() if _provider_name is not None else None


def __getattr__(name: str) -> Any:
    if name == "spec":  # not needed before the first Triton kernel is
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
