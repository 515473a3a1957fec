"""Device functions that Triton kernels share: what they do to tiles, one file a concern."""

from tefl.kernels.spec import spec, spec_path

spec_path(__path__)

from tefl.kernels.triton.language.convert import narrow, rounded, widen  # noqa: E402
from tefl.kernels.triton.language.norm import (  # noqa: E402
    normalised_tile,
    store_dinput,
    store_normalised,
    summed_tile,
)
from tefl.kernels.triton.language.reduce import column_sums, row_means  # noqa: E402
from tefl.kernels.triton.language.rows import load_tile, row_block, store_tile  # noqa: E402

__all__ = [
    "column_sums",
    "load_tile",
    "narrow",
    "normalised_tile",
    "rounded",
    "row_block",
    "row_means",
    "store_dinput",
    "store_normalised",
    "store_tile",
    "summed_tile",
    "widen",
]

spec("extend_language", globals())
