"""Launch shapes for ACME's cores, which have two warps."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def norm_forward_tile(columns: int) -> Any:
    """Trunk's tile with half of its rows: a core of ACME's has half of the registers."""
    # Trunk is imported where it is needed, not above: it may be waiting for this very file.
    from tefl.kernels.triton import _utils as trunk

    tile = trunk.default_norm_forward_tile(columns)
    return trunk.Tile(max(1, tile.rows // 2), tile.columns, tile.num_warps, tile.loops)
