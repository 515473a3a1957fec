"""Counting which implementation ran for which op."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from . import shared
from .lock import LOCK

__all__ = ["Calls", "count", "record"]


class Calls(dict[tuple[str, str, str], int]):
    """(op, impl_id, device type) -> calls that it served.

    ``fallbacks`` counts those of them that another implementation should have served and failed to:
    (op, failed impl_id, impl_id that ran, device type) -> calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fallbacks: dict[tuple[str, str, str, str], int] = {}


# Replaced as a whole, so that the router can look at it without a lock.
active: tuple[Calls, ...] = ()


@contextlib.contextmanager
def record() -> Iterator[Calls]:
    """Count the calls of all threads of the process while the ``with`` block runs."""
    global active
    calls = Calls()
    with LOCK:
        active = (*active, calls)
        shared.set_recording(True)
    try:
        yield calls
    finally:
        with LOCK:
            active = tuple(other for other in active if other is not calls)
            shared.set_recording(bool(active))


def count(op_name: str, impl_id: str, device_type: str, failed: str | None) -> None:
    """Add one call; ``failed`` is the implementation that it fell back from."""
    with LOCK:
        for calls in active:
            calls[op_name, impl_id, device_type] = calls.get((op_name, impl_id, device_type), 0) + 1
            if failed is not None:
                key = (op_name, failed, impl_id, device_type)
                calls.fallbacks[key] = calls.fallbacks.get(key, 0) + 1
