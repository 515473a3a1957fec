"""The implementations that come with tefl, by technique: one folder each, one file a family of ops."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol

from tefl.dispatch.types import OpImpl

__all__ = ["register_builtins"]

_TABLES = ("triton", "flaggems", "cuda", "reference")
"""Folders with a ``table.py`` whose ``implementations()`` lists `OpImpl`s and imports none of them."""


class _Registry(Protocol):
    def register_many(self, impls: Iterable[OpImpl]) -> None: ...


def register_builtins(registry: _Registry) -> None:
    """Add every built-in implementation to the registry. Imports neither triton nor the native module."""
    for folder in _TABLES:
        registry.register_many(import_module(f"{__name__}.{folder}.table").implementations())
