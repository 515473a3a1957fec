"""A PyTorch device under a vendor's own name, brought by a provider outside this package."""

from __future__ import annotations

import torch

from tefl import _native
from tefl.privateuse1.backend import PrivateUse1Backend
from tefl.privateuse1.broker import backend_name, is_registered, register_backend
from tefl.privateuse1.checks import BackendError, Defect
from tefl.privateuse1.fallback_table import Fallback, FallbackTable, fallbacks, reset_fallbacks
from tefl.privateuse1.names import parse_device_type
from tefl.privateuse1.status import status

__all__ = [
    "BackendError",
    "Defect",
    "Fallback",
    "FallbackTable",
    "PrivateUse1Backend",
    "as_alias",
    "backend_name",
    "device_arg",
    "fallbacks",
    "from_alias",
    "is_registered",
    "parse_device_type",
    "raw_stream",
    "register_backend",
    "reset_fallbacks",
    "status",
]


def as_alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a device tensor on the alias device (cpu or cuda): the same memory, no copy.

    For kernels that insist on that device's tensors. Autograd does not see through it. Work enqueued on the
    current stream is waited for where the alias device is the CPU. Where memory is to be kept for another
    stream, call `record_stream` on the device's tensor: CUDA ignores it on an alias.
    """
    alias: torch.Tensor = _native.load().as_alias(tensor)
    return alias


def from_alias(tensor: torch.Tensor, index: int | None = None) -> torch.Tensor:
    """Return a tensor on the claimed device over the memory of `tensor`, which is on the alias device."""
    device_tensor: torch.Tensor = _native.load().from_alias(tensor, -1 if index is None else index)
    return device_tensor


def raw_stream(index: int | None = None) -> int:
    """Return the provider's handle of the calling thread's current stream, of device `index` if given.

    It is a `tefl_stream` of `tefl_provider.h` as a number: what a vendor's implementation gives its kernels.
    """
    return int(_native.load().raw_stream(-1 if index is None else index))


def device_arg(text: str) -> torch.device:
    """Turn a command-line argument into a device, any registered one; see `tefl.privateuse1.registrar`."""
    from tefl.privateuse1 import registrar  # argparse is for scripts only

    return registrar.device_arg(text)
