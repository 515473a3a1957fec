"""The kernels of libmaca.so as Python functions. The declarations are those of src/maca.h."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

PATH = Path(__file__).with_name("libmaca.so")

# maca_type in src/maca.h
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class MacaError(RuntimeError):
    """A call into libmaca.so failed; the text is the library's own."""


@cache
def _library() -> ctypes.CDLL:
    # tefl has loaded the same file already: this is that library with its streams, not a second one.
    library = ctypes.CDLL(str(PATH))
    pointer, integer, long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    library.maca_rmsnorm_fwd.argtypes = [
        *(pointer, pointer, pointer, pointer),  # out, rsigma, input, weight
        *(integer, integer, integer),  # out_type, input_type, weight_type
        *(long, long, ctypes.c_float, integer, pointer),  # rows, columns, eps, zero_centered_gamma, stream
    ]
    library.maca_rmsnorm_fwd.restype = integer
    library.maca_last_error.restype = ctypes.c_char_p
    return library


def rmsnorm_fwd(
    out: torch.Tensor,
    rsigma: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    zero_centered_gamma: bool,
    stream: int,
) -> None:
    """Enqueue the kernel on `stream`, a raw handle, and return at once.

    `input` and `out` are (..., columns), `weight` is (columns,), `rsigma` is (...) and float32. All are
    contiguous and on the stream's card, their dtypes among TYPES. Raises MacaError if the library refuses.
    """
    columns = weight.numel()
    status = _library().maca_rmsnorm_fwd(
        *(out.data_ptr(), rsigma.data_ptr(), input.data_ptr(), weight.data_ptr()),
        *(TYPES[out.dtype], TYPES[input.dtype], TYPES[weight.dtype]),
        *(rsigma.numel(), columns, eps, zero_centered_gamma, stream),
    )
    if status != 0:
        raise MacaError(_library().maca_last_error().decode())
