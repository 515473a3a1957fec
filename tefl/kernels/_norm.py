"""What the norm kernels of Triton and CUDA C++ share on the host: the memory they write."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tefl.kernels._buffer import Buffer

__all__ = ["Gradients", "Normalised", "absent", "empty_gradients", "empty_normalised", "partial_rows"]


class Normalised(NamedTuple):
    """What a forward writes: contiguous, statistics float32 of shape ``input.shape[:-1]``."""

    out: Buffer
    rstd: Buffer
    mean: Buffer | None
    residual_out: Buffer | None


class Gradients(NamedTuple):
    """What a backward writes. ``dbias`` is None where there is no bias or nobody wants its gradient."""

    dinput: Buffer
    dweight: Buffer
    dbias: Buffer | None


def empty_normalised(
    input: Tensor, out_dtype: torch.dtype | None, *, layer: bool = False, add: bool = False
) -> Normalised:
    """Uninitialised results of a LayerNorm (``layer``) or RMSNorm, with a residual sum (``add``) or not."""
    shape = tuple(input.shape)
    return Normalised(
        out=Buffer(shape, out_dtype or input.dtype),
        rstd=Buffer(shape[:-1], torch.float32),
        mean=Buffer(shape[:-1], torch.float32) if layer else None,
        residual_out=Buffer(shape, input.dtype) if add else None,
    )


def empty_gradients(input: Tensor, weight: Tensor, *, bias: bool = False) -> Gradients:
    """Uninitialised gradients; those of weight and bias are zero where input has no rows to sum over."""
    shape, dtype, zero = tuple(weight.shape), weight.dtype, input.numel() == 0
    return Gradients(
        dinput=Buffer(tuple(input.shape), input.dtype),
        dweight=Buffer(shape, dtype, zero=zero),
        dbias=Buffer(shape, dtype, zero=zero) if bias else None,
    )


def partial_rows(count: int, weight: Tensor) -> Buffer:
    """Uninitialised partial rows of a gradient of ``weight``: float32, shape (count, columns)."""
    return Buffer((count, *weight.shape), torch.float32)


def absent(weight: Tensor) -> Buffer:
    """What an op returns for a gradient that nobody wants: no elements, of the weight's dtype."""
    return Buffer((0,), weight.dtype)
