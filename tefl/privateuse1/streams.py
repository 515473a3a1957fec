"""Streams and events, under the names that torch.cuda has."""

from __future__ import annotations

import torch

from tefl.privateuse1.indexing import Device, device_index

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "is_current_stream_capturing",
    "set_stream",
    "stream",
]

Stream = torch.Stream
Event = torch.Event


class StreamContext:
    """A context in which `stream` is current, on its device; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exc_info)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return a context in which `stream` is current; None changes nothing."""
    return StreamContext(stream)


def current_stream(device: Device | None = None) -> torch.Stream:
    """Return the calling thread's current stream of a device."""
    return torch.accelerator.current_stream(device_index(device))


def default_stream(device: Device | None = None) -> torch.Stream:
    """Return the stream that is current where nobody chose one. RuntimeError: there is no such device."""
    kind, index = torch._C._autograd.DeviceType.PrivateUse1.value, device_index(device)
    torch.accelerator.current_stream(index)  # knows the devices
    return torch.Stream(stream_id=0, device_index=index, device_type=kind)


def set_stream(stream: torch.Stream | None) -> None:
    """Make `stream` the calling thread's current one for its device; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def is_current_stream_capturing() -> bool:
    """Return False: work on the device is not captured into graphs."""
    return False
