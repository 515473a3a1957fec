"""What a sample is, and tensors that are awkward in the ways that callers' tensors are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

__all__ = ["Bad", "Sample", "awkward", "random"]


@dataclass(frozen=True)
class Sample:
    """One call of an op."""

    label: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Sample:
        """The same call with each tensor changed."""

        def of(value: Any) -> Any:
            return change(value) if isinstance(value, Tensor) else value

        return replace(
            self, args=tuple(map(of, self.args)), kwargs={name: of(v) for name, v in self.kwargs.items()}
        )


@dataclass(frozen=True)
class Bad:
    """One call that must be refused with an error of a type, whose text has all these parts."""

    label: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    error: type[Exception]
    says: tuple[str, ...]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normally distributed values: for a seed the same in every dtype, but for rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def awkward(dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are usual, empty, tiny, of many dimensions, and of every kind of stride."""
    yield "matrix", random(6, 33, dtype=dtype)
    yield "vector", random(9, dtype=dtype)
    yield "one element", random(1, 1, dtype=dtype)
    yield "no rows", random(0, 7, dtype=dtype)
    yield "no rows of three dimensions", random(2, 0, 7, dtype=dtype)
    yield "five dimensions", random(2, 3, 1, 4, 5, dtype=dtype)
    yield "transposed", random(12, 6, dtype=dtype).t()
    yield "permuted", random(5, 4, 3, dtype=dtype).permute(2, 0, 1)
    yield "every other column", random(4, 20, dtype=dtype)[:, ::2]
    yield "expanded", random(1, 8, dtype=dtype).expand(3, 8)
    yield "offset into its storage", random(41, dtype=dtype)[1:].view(5, 8)
