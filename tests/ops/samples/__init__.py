"""Arguments to call each declared op with, one module a family. Every declared op must have some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch

from . import norm
from .sample import Bad, Sample

__all__ = ["BAD", "GOOD", "Bad", "Sample"]

_FAMILIES = (norm,)

GOOD: Mapping[str, Callable[[torch.dtype], Iterable[Sample]]] = MappingProxyType(
    {op: make for family in _FAMILIES for op, make in family.GOOD.items()}
)
"""By op: calls that must work, for tensors of a dtype."""

BAD: Mapping[str, Callable[[], Iterable[Bad]]] = MappingProxyType(
    {op: make for family in _FAMILIES for op, make in family.BAD.items()}
)
"""By op: calls that must be refused, with what the error must say."""
