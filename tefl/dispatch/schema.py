"""The declared ops."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .types import OpDecl

_DECLARED: dict[str, OpDecl] = {}


def declare(decl: OpDecl) -> None:
    """Record the declaration of an op. A second one of the same name is an error that shows both."""
    if (old := _DECLARED.get(decl.name)) is not None:
        raise ValueError(f"op {decl.name!r} is declared twice: {old.schema} ({old.family}) and {decl.schema} ({decl.family})")
    _DECLARED[decl.name] = decl


def declarations() -> Mapping[str, OpDecl]:
    """Every declared op by name, in the order of declaration; a read-only live view."""
    return MappingProxyType(_DECLARED)
