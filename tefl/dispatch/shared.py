"""What dispatch tells the native router: the epoch, the open policy contexts, whether calls are counted.

The router reads these at every call and takes no lock for it. Where the compiled part is absent nobody
listens, and ops are routed in Python.
"""

from __future__ import annotations

from types import ModuleType

__all__ = ["native", "set_epoch", "set_open_contexts", "set_recording"]

native: ModuleType | None = None
"""``tefl._C.dispatch``, once `tefl.dispatch.native.attach` has said so."""


def set_epoch(now: int) -> None:
    """Something has changed, see `tefl.dispatch.lock.Epoch`."""
    if native is not None:
        native.set_epoch(now)


def set_open_contexts(count: int) -> None:
    """So many policy contexts are open anywhere."""
    if native is not None:
        native.set_open_contexts(count)


def set_recording(active: bool) -> None:
    """Somebody counts the calls, or nobody does any more."""
    if native is not None:
        native.set_recording(active)
