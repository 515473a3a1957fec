"""What the norm kernels of every technique share on the host: the tensors they write."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Gradients", "Normalised", "empty_gradients", "empty_normalised", "partial_rows"]


class Normalised(NamedTuple):
    """What a forward writes: contiguous, statistics float32 of shape ``input.shape[:-1]``."""

    out: Tensor
    rstd: Tensor
    mean: Tensor | None
    residual_out: Tensor | None


class Gradients(NamedTuple):
    """What a backward writes. ``dbias`` is None where there is no bias or nobody wants its gradient."""

    dinput: Tensor
    dweight: Tensor
    dbias: Tensor | None


def empty_normalised(
    input: Tensor, out_dtype: torch.dtype | None, *, layer: bool = False, add: bool = False
) -> Normalised:
    """Uninitialised results of a LayerNorm (``layer``) or RMSNorm, with a residual sum (``add``) or not."""
    shape, device = input.shape, input.device
    return Normalised(
        out=torch.empty(shape, dtype=out_dtype or input.dtype, device=device),
        rstd=torch.empty(shape[:-1], dtype=torch.float32, device=device),
        mean=torch.empty(shape[:-1], dtype=torch.float32, device=device) if layer else None,
        residual_out=torch.empty(shape, dtype=input.dtype, device=device) if add else None,
    )


def empty_gradients(input: Tensor, weight: Tensor, *, bias: bool = False) -> Gradients:
    """Uninitialised gradients; those of weight and bias are zero where input has no rows to sum over."""
    make = torch.empty if input.numel() else torch.zeros
    shape, dtype, device = weight.shape, weight.dtype, weight.device
    return Gradients(
        dinput=torch.empty(input.shape, dtype=input.dtype, device=device),
        dweight=make(shape, dtype=dtype, device=device),
        dbias=make(shape, dtype=dtype, device=device) if bias else None,
    )


def partial_rows(count: int, weight: Tensor) -> Tensor:
    """Uninitialised partial rows of a gradient of ``weight``: float32, shape (count, columns)."""
    return torch.empty((count, *weight.shape), dtype=torch.float32, device=weight.device)
