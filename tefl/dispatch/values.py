"""What can be done with any argument or result of an op: find its tensors, change them, put them in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .._errors import dtype_name

__all__ = ["described", "detached", "mapped", "named_dtype", "on_meta", "tensors"]


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value, those in lists, tuples and mappings included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from tensors(member)
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from tensors(member)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with each of those tensors changed, and all else as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: mapped(member, change) for name, member in value.items()}
    return type(value)(mapped(m, change) for m in value) if type(value) in (tuple, list) else value


def on_meta(value: Any) -> Any:
    """The value with tensors of the same sizes, strides and dtypes that have no memory."""

    def form(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    return mapped(value, form)


def detached(result: Any) -> Any:
    """The result with tensors that require grad detached: a graph is the op's, not the implementation's."""
    if isinstance(result, (tuple, list)):
        make = getattr(type(result), "_make", type(result))  # a named tuple takes its fields one by one
        return make(map(detached, result))
    return result.detach() if isinstance(result, torch.Tensor) and result.requires_grad else result


def described(tensor: torch.Tensor) -> str:
    """``"float32 (2, 3)"``, with the strides of a tensor that is not contiguous."""
    layout = "" if tensor.is_contiguous() else f" strides {tensor.stride()}"
    return f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}{layout}"


def named_dtype(text: str) -> torch.dtype | None:
    """``"bfloat16"`` or ``"torch.bfloat16"`` as a dtype; None where torch has none of that name."""
    dtype = getattr(torch, text.removeprefix("torch."), None)
    return dtype if isinstance(dtype, torch.dtype) else None
