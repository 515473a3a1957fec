"""Steps of the norm kernels on a tile: what is read, what is written."""
# mypy: allow-untyped-defs, allow-untyped-decorators, allow-incomplete-defs

import triton
import triton.language as tl

from tefl.kernels.triton.language.convert import rounded, widen
from tefl.kernels.triton.language.rows import load_tile, store_tile

__all__ = ["normalised_tile", "store_dinput", "store_normalised", "summed_tile"]


@triton.jit
def summed_tile(input, residual, residual_out, row, input_stride, residual_stride, col, exists):
    """A tile of what is normalised: input, or input + residual rounded as residual_out stores it."""
    x = load_tile(input, row, input_stride, col, exists)
    if residual is not None:
        x += load_tile(residual, row, residual_stride, col, exists)
        x = rounded(x, residual_out)
    return x


@triton.jit
def store_normalised(out, h, weight, bias, row, columns, col, exists, OFFSET: tl.constexpr):
    """out = h * (weight + OFFSET) + bias for a tile of normalised values h."""
    y = h * (widen(tl.load(weight + col, mask=col < columns, other=0.0)) + OFFSET)[None, :]
    if bias is not None:
        y += widen(tl.load(bias + col, mask=col < columns, other=0.0))[None, :]
    store_tile(out, y, row, columns, col, exists)


@triton.jit
def normalised_tile(input, mean, rstd, row, row_exists, stride, col, exists, LAYER: tl.constexpr):
    """A tile of h = (x - mean) * rstd, and its rows' rstd."""
    x = load_tile(input, row, stride, col, exists)
    if LAYER:
        x -= tl.load(mean + row, mask=row_exists, other=0.0)[:, None]
    r = tl.load(rstd + row, mask=row_exists, other=0.0)
    return x * r[:, None], r


@triton.jit
def store_dinput(dinput, dx, add, add_stride, row, columns, col, exists):
    if add is not None:
        dx += load_tile(add, row, add_stride, col, exists)
    store_tile(dinput, dx, row, columns, col, exists)
