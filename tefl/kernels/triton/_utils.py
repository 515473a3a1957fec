"""Launch shapes of the Triton kernels: pure functions of the problem, and what they need of a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from tefl.kernels.spec import spec_func

__all__ = [
    "Tile",
    "ceil_div",
    "multiprocessors",
    "norm_backward_tile",
    "norm_forward_tile",
    "norm_programs",
    "norm_reduce_columns",
]

_INTERPRETED_MULTIPROCESSORS = 2  # more programs than one, so that partial sums are added up there too
_MOST_ELEMENTS = 1 << 20  # Triton's own limit for a tile
_MOST_WARPS = 32  # 1024 threads
_REDUCED_ROWS = 64  # of partial sums, which one program adds up at a time


@dataclass(frozen=True)
class Tile:
    """What one program holds: a power of two of rows and of columns, spread over num_warps warps."""

    rows: int
    columns: int
    num_warps: int
    loops: bool
    """Whether the columns of a row do not fit and the program loops over them."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@cache
def default_norm_forward_tile(columns: int) -> Tile:
    """Two 16-byte vectors of bfloat16 a thread, four for the longest rows; short rows share a program."""
    block = _power_of_two(columns)
    if block > 32768:
        return Tile(1, 8192, 16, loops=True)
    rows = min(32, max(1, 2048 // block))
    return Tile(rows, block, _warps(rows * block), loops=False)


@cache
def default_norm_backward_tile(columns: int) -> Tile:
    """Like the forward's, but for rows of up to 8192 columns: there are four arrays to hold, not one."""
    block = _power_of_two(columns)
    if block > 8192:
        return Tile(1, 4096, 8, loops=True)
    rows = min(32, max(1, 1024 // block))
    return Tile(rows, block, _warps(rows * block), loops=False)


def default_norm_programs(rows: int, tile: Tile, multiprocessors: int) -> int:
    """How many programs of a persistent backward fill a device; each leaves one partial row."""
    resident = next(
        n for limit, n in ((256, 16), (1024, 8), (2048, 4), (4096, 2), (8192, 1)) if tile.columns <= limit
    )
    return min(multiprocessors * resident, ceil_div(rows, tile.rows))


def default_norm_reduce_columns(columns: int) -> int:
    """Columns that one program adds partial rows of: few, so that many programs share the work."""
    return 32 if columns <= 8192 else 128


@cache
def default_multiprocessors(device: torch.device) -> int:
    """Of a CUDA device, or of the CUDA device that a claimed one is an alias of (it has the same index)."""
    if device.type == "cpu" or not torch.cuda.is_available():
        return _INTERPRETED_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device.index or 0).multi_processor_count


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _warps(elements: int) -> int:
    """16 elements a thread, 32 in the largest tiles, which else need more threads than a block may have."""
    return max(4, min(16 if elements <= 16384 else 32, elements // 512))


# What is wrong with an answer that is not ours: kernels launched with such a one would leave out a part.


def _wrong_tile(tile: object, columns: int) -> str | None:
    if not isinstance(tile, Tile):
        return f"wanted a {__name__}.Tile"
    for name, most in (("rows", _MOST_ELEMENTS), ("columns", _MOST_ELEMENTS), ("num_warps", _MOST_WARPS)):
        if (said := _wrong_width(getattr(tile, name), most)) is not None:
            return f"{name}: {said}"
    if tile.rows * tile.columns > _MOST_ELEMENTS:
        return f"wanted at most {_MOST_ELEMENTS} elements"
    if not tile.loops and tile.columns < columns:
        return f"wanted all {columns} columns of a row, or a tile that loops"
    return None


def _wrong_reduce_columns(width: object, columns: int) -> str | None:
    return _wrong_width(width, _MOST_ELEMENTS // _REDUCED_ROWS)


def _wrong_width(width: object, most: int) -> str | None:
    if type(width) is int and 0 < width <= most and width == _power_of_two(width):
        return None
    return f"wanted a power of two, at most {most}"


def _wrong_count(count: object, *_: object) -> str | None:
    return None if type(count) is int and count > 0 else "wanted a positive int"


# A backend's own shapes, where it has some; the functions themselves where it has none.
norm_forward_tile = spec_func("norm_forward_tile", default=default_norm_forward_tile, wrong=_wrong_tile)
norm_backward_tile = spec_func("norm_backward_tile", default=default_norm_backward_tile, wrong=_wrong_tile)
norm_programs = spec_func("norm_programs", default=default_norm_programs, wrong=_wrong_count)
norm_reduce_columns = spec_func(
    "norm_reduce_columns", default=default_norm_reduce_columns, wrong=_wrong_reduce_columns
)
multiprocessors = spec_func("multiprocessors", default=default_multiprocessors, wrong=_wrong_count)
