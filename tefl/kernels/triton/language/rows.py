"""Rows and columns of a tile. Offsets are 64-bit: a tensor may have more than 2^31 elements."""
# mypy: allow-untyped-defs, allow-untyped-decorators, allow-incomplete-defs

import triton
import triton.language as tl

from tefl.kernels.triton.language.convert import narrow, widen

__all__ = ["load_tile", "row_block", "store_tile"]


@triton.jit
def row_block(block, rows, ROWS: tl.constexpr):
    """The row numbers of a block of ROWS rows, and which of them exist."""
    row = block * ROWS + tl.arange(0, ROWS).to(tl.int64)
    return row, row < rows


@triton.jit
def load_tile(base, row, stride, col, exists):
    """The values at (row, col) as float32, 0 where none exists; rows are `stride` elements apart."""
    return widen(tl.load(base + row[:, None] * stride + col[None, :], mask=exists, other=0.0))


@triton.jit
def store_tile(out, values, row, columns, col, exists):
    """Stores a tile in a contiguous tensor, in that tensor's dtype."""
    tl.store(out + row[:, None] * columns + col[None, :], narrow(values, out), mask=exists)
