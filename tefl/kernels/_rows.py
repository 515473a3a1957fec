"""Tensors as rows: what the kernels that walk over a last dimension need to know of a tensor's layout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tefl.kernels._buffer import Operand, dense

__all__ = ["row_stride", "rows_of"]


def row_stride(shape: Sequence[int], stride: Sequence[int]) -> int | None:
    """Elements from one row to the next, where all rows lie at even distances and each is dense; else None.

    A row is a run of the last dimension. A single row has the distance of a dense tensor, its length.
    """
    columns = shape[-1]
    if columns > 1 and stride[-1] != 1:
        return None
    step: int | None = None
    covered = 1
    for size, distance in zip(reversed(shape[:-1]), reversed(stride[:-1]), strict=True):
        if size == 1:
            continue
        if step is None:
            step = distance
        elif distance != step * covered:
            return None
        covered *= size
    return columns if step is None else step


def rows_of(tensor: Tensor) -> tuple[Operand, int]:
    """The tensor and its row stride in elements. Copied only where rows are not dense and evenly spaced."""
    if tensor.is_contiguous():
        return tensor, tensor.shape[-1]
    step = row_stride(tensor.shape, tensor.stride())
    return (dense(tensor), tensor.shape[-1]) if step is None else (tensor, step)
