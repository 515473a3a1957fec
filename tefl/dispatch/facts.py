"""The one impure step of a decision: reading, from the tensors of a call, what predicates may know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .lock import LOCK, epoch
from .types import Facts

__all__ = ["active_provider", "gather", "set_active_provider"]


@dataclass(frozen=True)
class _Provider:
    name: str
    device_name: str
    alias: str
    arch: Callable[[int], tuple[int, int] | None]


_active: _Provider | None = None


def set_active_provider(
    *, name: str, device_name: str, alias: str, arch: Callable[[int], tuple[int, int] | None]
) -> None:
    """Say who owns the PrivateUse1 device: the provider's own name, the device's, "cpu" | "cuda" | "none" for
    where its memory can be computed on, and a function from a device index to its (major, minor) or None.
    """
    global _active
    with LOCK:
        _active = _Provider(name, device_name, alias, arch)
        epoch.advance()


def active_provider() -> str | None:
    """The own name of the provider that owns the PrivateUse1 device; None where none does."""
    return _active.name if _active is not None else None


def gather(device: torch.device | None, dtypes: tuple[torch.dtype, ...]) -> Facts:
    """The facts of a call on ``device`` with tensor arguments of these dtypes; of none, those of the CPU."""
    if device is None or device.type == "cpu":
        return Facts("cpu", None, dtypes)
    if device.type == torch._C._get_privateuse1_backend_name():
        return _claimed(device, dtypes)
    arch = _cuda_arch(device) if device.type == "cuda" else None
    return Facts(device.type, device.index, dtypes, arch)


def _cuda_arch(device: torch.device) -> tuple[int, int] | None:
    """None where the device is not here, as a fake tensor's need not be."""
    if (device.index or 0) >= torch.cuda.device_count():
        return None
    return torch.cuda.get_device_capability(device)


def _claimed(device: torch.device, dtypes: tuple[torch.dtype, ...]) -> Facts:
    provider, name = _active, device.type
    if provider is None:
        return Facts("privateuse1", device.index, dtypes, device_name=name)
    arch = provider.arch(device.index or 0)
    return Facts("privateuse1", device.index, dtypes, arch, provider.name, provider.alias, name)
