"""Transformer Engine's numbers for dtypes, and the words that plugins use for them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import torch

from tefl.dispatch import values

__all__ = ["DType", "named_dtype", "torch_dtype", "transformer_engine_dtype"]


class DType(IntEnum):
    """The dtypes that Transformer Engine knows, by its own numbers."""

    kByte = 0
    kInt16 = 1
    kInt32 = 2
    kInt64 = 3
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat8E8M0 = 9
    kFloat4E2M1 = 10
    kNumTypes = 11


_TORCH: Final = {
    DType.kByte: torch.uint8,
    DType.kInt16: torch.int16,
    DType.kInt32: torch.int32,
    DType.kInt64: torch.int64,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
    DType.kFloat8E4M3: torch.float8_e4m3fn,
    DType.kFloat8E5M2: torch.float8_e5m2,
}
_SHORT: Final = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def torch_dtype(given: Any) -> torch.dtype:
    """A torch dtype, a `DType`, its number, or another package's enum member of that name, as a torch dtype.

    TypeError where torch has none.
    """
    if isinstance(given, torch.dtype):
        return given
    name = str(getattr(given, "name", ""))
    try:
        if isinstance(given, bool):
            raise TypeError
        return _TORCH[DType[name] if name in DType.__members__ else DType(int(given))]
    except (KeyError, TypeError, ValueError):
        raise TypeError(
            f"otype={given!r} is no dtype that torch has: give a torch.dtype or a DType"
        ) from None


def transformer_engine_dtype(dtype: torch.dtype) -> DType | torch.dtype:
    """The `DType` of a torch dtype; the dtype itself where Transformer Engine has none, as for float64."""
    return next((theirs for theirs, ours in _TORCH.items() if ours is dtype), dtype)


def named_dtype(text: Any) -> Any:
    """``"bf16"``, ``"bfloat16"`` or ``"torch.bfloat16"`` as a torch dtype, None for another word; what is no
    word comes back as it is."""
    if not isinstance(text, str):
        return text
    name = text.removeprefix("torch.")
    return values.named_dtype(_SHORT.get(name, name))
