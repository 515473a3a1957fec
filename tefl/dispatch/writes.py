"""Whether an implementation has left alone what its op leaves alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from .schema import Schema
from .types import UndeclaredWrite

__all__ = ["Versions", "undeclared_write", "versions", "written"]

Versions = list[tuple[str, int]]
"""For each tensor that an op leaves alone, the argument's name and how often PyTorch has seen it written.

A tensor in the memory of one that the op writes is not among them: views share one count.
"""


def versions(schema: Schema, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Versions:
    """Those of a call with all its arguments."""
    tensors = [
        (name, tensor)
        for name, value in (*zip(schema.positional, args, strict=False), *kwargs.items())
        if name in schema.tensors
        for tensor in (value if isinstance(value, (list, tuple)) else (value,))
        if isinstance(tensor, torch.Tensor) and not tensor.is_inference()  # which has no version
    ]
    written = [tensor for name, tensor in tensors if name in schema.written]
    return [
        (name, tensor._version)
        for name, tensor in tensors
        if name not in schema.written and not any(map(partial(_share_memory, tensor), written))
    ]


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch._C._is_alias_of(one, other))  # type: ignore[attr-defined]


def written(before: Versions, now: Versions) -> str | None:
    """The argument that was written between the two; None where none was."""
    pairs = zip(before, now, strict=False)
    return next((argument for (argument, version), (_, later) in pairs if version != later), None)


def undeclared_write(
    op_name: str, impl_id: str, argument: str, who: str = "implementation"
) -> UndeclaredWrite:
    """The error about an implementation, or its predicate, that has written an argument."""
    return UndeclaredWrite(
        f"Op {op_name!r}: {who} {impl_id!r} has written argument {argument!r}, which the op leaves "
        "alone by its schema: graphs and compilers rely on the old values. "
        f"Work on a copy, {argument}.clone(), in the implementation. (Or another thread has written it "
        "meanwhile.)"
    )
