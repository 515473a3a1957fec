"""How the CUDA norm kernels are laid over a problem: pure functions of its shape.

A row is worked on by `threads` threads, each keeping one, two or four 16-byte vectors in registers where the
row fits; `rows` short rows share a block. csrc/kernels/rows.cuh says what the kernels rely on, entries.cuh
what the layouts are called.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

__all__ = ["Plan", "backward_blocks", "backward_plan", "forward_plan"]

_WARP = 32
_BLOCK = 128
"""Threads of a block that short rows share."""
_GRID_LIMIT = 2**31 - 1
_REGISTERS = 65536
"""Of a multiprocessor of every architecture the kernels are compiled for."""


@dataclass(frozen=True)
class Plan:
    """The layout of a row, the shape of a block, and how many blocks fit on a multiprocessor."""

    layout: str
    """n1, n2, n4, loop or scalar: the end of the entry point's name."""
    threads: int
    rows: int
    kept: int
    """Elements of a row that a thread keeps; 0 where each pass reads the row again."""
    resident: int

    @property
    def block(self) -> tuple[int, int]:
        return self.threads, self.rows

    def blocks(self, rows: int) -> int:
        """Blocks that give each row of the problem its own place; the kernels loop over what is beyond."""
        return min(_GRID_LIMIT, -(-rows // self.rows))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a backward whose blocks have several rows, to add up their gradients."""
        return 4 * self.rows * self.threads * self.kept if self.rows > 1 else 0


@cache
def forward_plan(columns: int, itemsize: int, aligned: bool) -> Plan:
    """``aligned``: every row starts at a 16-byte boundary and is a multiple of 16 bytes long.

    Two vectors a thread where that is at most 512 threads: three such blocks fit on a multiprocessor, and the
    loads of one overlap the sums of another.
    """
    if not aligned:
        return _scalar(columns, share=True)
    return _short(columns, itemsize) or _long(columns, itemsize, {2: 512, 4: 1024}, 1024)


@cache
def backward_plan(columns: int, itemsize: int, aligned: bool, layer: bool) -> Plan:
    """``layer``: LayerNorm's, which keeps two sums a column and so leaves room for fewer threads.

    Four vectors a thread: at most 512 threads fit on a multiprocessor, and all bytes in flight are theirs.
    """
    if not aligned:
        return _scalar(columns, share=False)
    return _short(columns, itemsize, layer) or _long(
        columns, itemsize, {4: 256 if layer else 512}, 512, layer
    )


def backward_blocks(plan: Plan, rows: int, multiprocessors: int) -> int:
    """How many blocks of a persistent backward fill the device; each leaves one partial row."""
    return min(plan.blocks(rows), multiprocessors * plan.resident)


def _short(columns: int, itemsize: int, layer: bool = False) -> Plan | None:
    """Rows that a warp or less of it holds: several share a block, and none needs a barrier."""
    width = 16 // itemsize
    for count in (1, 2, 4):
        if columns <= count * _WARP * width:
            threads = min(_WARP, _power_of_two(columns // width))
            return Plan(
                f"n{count}", threads, _BLOCK // threads, count * width, _resident(count, _BLOCK, layer)
            )
    return None


def _long(columns: int, itemsize: int, limits: dict[int, int], most: int, layer: bool = False) -> Plan:
    """Rows that have a block each; ``limits``: threads that a block may have, by vectors a thread."""
    width = 16 // itemsize
    for count, limit in limits.items():
        threads = _whole_warps(-(-columns // (count * width)))
        if threads <= limit:
            return Plan(f"n{count}", threads, 1, count * width, _resident(count, threads, layer))
    return Plan("loop", most, 1, 0, 1024 // most)


def _resident(count: int, threads: int, layer: bool) -> int:
    """Blocks of a backward that a multiprocessor has registers for, as the compiler reports them or more."""
    registers = {1: 80, 2: 128, 4: 168 if layer else 128}[count]
    return max(1, _REGISTERS // (registers * threads))


def _scalar(columns: int, share: bool) -> Plan:
    threads = min(512, _whole_warps(-(-columns // 4)))
    rows = _BLOCK // threads if share and threads == _WARP else 1
    return Plan("scalar", threads, rows, 0, 1024 // threads)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _whole_warps(threads: int) -> int:
    return -(-threads // _WARP) * _WARP
