"""Memory that does not exist yet: what stands for a tensor where a call is laid out and not yet run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Buffer", "Operand", "dense"]


@dataclass(frozen=True, eq=False)
class Buffer:
    """A dense tensor that each run of a call allocates, at an address that 16 divides.

    Its values are those of ``source``, cast to ``dtype``; zeros where ``zero``; else what the memory holds.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    source: Tensor | None = None
    zero: bool = False

    def make(self, device: torch.device) -> Tensor:
        """Allocate it."""
        if self.source is not None:
            return torch.empty(self.shape, dtype=self.dtype, device=device).copy_(self.source)
        return (torch.zeros if self.zero else torch.empty)(self.shape, dtype=self.dtype, device=device)


Operand = Tensor | Buffer
"""What a kernel reads or writes: both have ``shape`` and ``dtype``."""


def dense(tensor: Tensor, dtype: torch.dtype | None = None) -> Operand:
    """The tensor in a dtype, its own by default; a copy where it is not contiguous or of another dtype."""
    wanted = dtype or tensor.dtype
    if tensor.dtype is wanted and tensor.is_contiguous():
        return tensor
    return Buffer(tuple(tensor.shape), wanted, source=tensor)
