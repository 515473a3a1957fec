"""Memory statistics: torch.accelerator's, under the names that torch.cuda has."""

from __future__ import annotations

from typing import Any

import torch

from tefl.privateuse1.indexing import Device, device_index

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]


def empty_cache() -> None:
    """Give cached memory that no tensor uses back to the device."""
    torch.accelerator.empty_cache()


def memory_allocated(device: Device | None = None) -> int:
    """Return the bytes that tensors occupy on a device."""
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: Device | None = None) -> int:
    """Return the most bytes that tensors occupied since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: Device | None = None) -> int:
    """Return the bytes taken from a device, the cached ones included."""
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: Device | None = None) -> int:
    """Return the most bytes taken from a device since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_reserved(device_index(device))


def memory_stats(device: Device | None = None) -> dict[str, Any]:
    """Return the allocator's statistics, as `torch.accelerator.memory_stats` names them."""
    return torch.accelerator.memory_stats(device_index(device))


def reset_peak_memory_stats(device: Device | None = None) -> None:
    """Let the peaks start anew from what is in use now."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Device | None = None) -> None:
    """Let the counts of allocations and frees start anew from zero."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def mem_get_info(device: Device | None = None) -> tuple[int, int]:
    """Return the bytes free and in all on a device."""
    return torch.accelerator.get_memory_info(device_index(device))
