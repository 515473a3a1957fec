"""From what users write for a device to its index."""

from __future__ import annotations

import torch

from tefl import _native

#: A device index, "maca", "maca:1", or a torch.device of the claimed name.
Device = int | str | torch.device


def optional_index(device: Device) -> int | None:
    """Return the index that `device` names, None if it names none ("maca")."""
    if isinstance(device, int):
        return device
    name = torch._C._get_privateuse1_backend_name()
    parsed = torch.device(device)
    if parsed.type != name:
        raise ValueError(f"device is {str(device)!r}, want an index or a device of type {name!r}")
    return parsed.index


def device_index(device: Device | None) -> int:
    """Return the index that `device` names, else the calling thread's current device.

    Raises ValueError for a negative one, which is no device's; whether there are as many is for the callee.
    """
    index = None if device is None else optional_index(device)
    if index is None:
        return current_index()
    if index < 0:
        raise ValueError(f"device is {index}, want an index from 0 on, or None for the current device")
    return index


def current_index() -> int:
    """Return the calling thread's current device."""
    native = _native.load()
    if native.shares_gpu():
        native.init()  # only CUDA knows which it is
    return int(native.current_device())
