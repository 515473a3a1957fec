"""Errors that are the caller's, whichever implementation happens to meet them."""

from __future__ import annotations

import torch

from .._errors import SpecError
from .types import Deviation, UndeclaredWrite

__all__ = ["EXHAUSTION", "must_surface"]

EXHAUSTION = (MemoryError, RecursionError, torch.OutOfMemoryError)
"""Errors of running out of memory or of stack, which may be the caller's doing."""

_SURFACING_TYPES = (
    *EXHAUSTION,
    torch.AcceleratorError,
    SpecError,
    Deviation,
    UndeclaredWrite,
)
# What torch, CUDA and Triton say when memory is short or when work enqueued earlier has failed.
_SURFACING = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUDA error",
    "device-side assert",
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
)


def must_surface(error: Exception) -> bool:
    """Whether an error says nothing about the implementation that happened to meet it.

    Out of memory or stack would strike the next one too, an asynchronous device error belongs to earlier
    work, a deviation is what the user has asked to be told, and an argument that was written is no longer
    what the next one should get. Kernels that are not the selected backend's are not replaced silently.
    """
    if isinstance(error, _SURFACING_TYPES):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _SURFACING)
