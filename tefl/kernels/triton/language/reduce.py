"""Sums over the rows and the columns of a float32 tile."""
# mypy: allow-untyped-defs, allow-untyped-decorators, allow-incomplete-defs

import triton
import triton.language as tl

__all__ = ["column_sums", "row_means"]


@triton.jit
def row_means(values, columns):
    """The mean of each row of a tile whose values beyond ``columns`` are 0."""
    return tl.sum(values, 1) / columns


@triton.jit
def column_sums(values):
    """The sum of each column of a tile."""
    return tl.sum(values, 0)
