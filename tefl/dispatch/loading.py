"""The lock under which plugins are imported and register, which no import waits for in vain.

A plugin's code may do anything, import packages above all, so none of it runs under the lock of dispatch's
state: a thread that imports such a package may want that lock while it holds the package's import lock.
The same thread may make the first call of an op; then it must not wait for a loading that waits for it.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from .lock import ForkSafeLock

__all__ = ["LOADING", "AwaitedImport", "LoadingLock"]

_LOOK_EVERY_S = 0.05
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class AwaitedImport(RuntimeError):
    """Plugins are being loaded, which waits for a module that this thread is importing."""


class LoadingLock(ForkSafeLock):
    """Held while plugins are loaded, by one thread of the process, once.

    `AwaitedImport` where waiting for it would never end, RuntimeError where its own thread asks again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loader: int | None = None

    def __enter__(self) -> None:
        if self._loader == threading.get_ident():
            raise RuntimeError("an op was called while plugins are being loaded; call it after registration")
        while not self._lock.acquire(timeout=_LOOK_EVERY_S):
            if (module := _awaited_import(self._loader)) is not None:
                raise AwaitedImport(
                    f"an op was called by the import of {module!r}, which another thread waits for "
                    "to load plugins"
                )
        self._loader = threading.get_ident()

    def __exit__(self, *exc_info: object) -> None:
        self._loader = None
        super().__exit__(*exc_info)

    def _in_child(self) -> None:
        if not self._held_for_fork:
            self._loader = None
        super()._in_child()


def _awaited_import(loader: int | None) -> str | None:
    """The module whose import by this thread the loading thread waits for, by way of others perhaps."""
    frames, thread = sys._current_frames(), loader
    for _ in frames:
        lock = _module_lock(frames.get(thread)) if thread is not None else None
        thread = getattr(lock, "owner", None)
        if thread == threading.get_ident():
            return str(getattr(lock, "name", "?"))
    return None


def _module_lock(frame: FrameType | None) -> Any:
    """The import lock of a module that a thread waits for at this frame; None where it waits for none."""
    if frame is None or (frame.f_code.co_filename, frame.f_code.co_name) != (_IMPORT_SYSTEM, "acquire"):
        return None
    return frame.f_locals.get("self")


# Made after the lock of the state, so that a fork takes it first, as loading does.
LOADING = LoadingLock()
