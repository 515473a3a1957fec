"""What a vendor declares about a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PrivateUse1Backend:
    """A device to register under a vendor's own name.

    name: the device's name, ``[a-z_]+``; as in ``torch.ones(2, device="maca")``.
    provider: path of the provider's shared library (see ``tefl_provider.h``), or the name of a built-in
        provider such as "sim".
    default_autocast_dtype: the dtype of ``torch.autocast(name)``, float16 or bfloat16; None if users must
        name one.
    register_kernels: called before the name is claimed; registers `torch.library` kernels for the
        PrivateUse1 key and `OpImpl`s. The Library objects it returns, one or several, are kept alive; all
        that it registered is undone if the device turns out to lack a mandatory kernel.
    register_ccl: called after the name is claimed; registers a process group factory in Python.
    """

    name: str
    provider: str | os.PathLike[str]
    default_autocast_dtype: torch.dtype | None = None
    register_kernels: Callable[[], object] | None = None
    register_ccl: Callable[[], object] | None = None
