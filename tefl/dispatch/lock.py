"""One lock for every change of dispatch's state, a counter of those changes, and what a fork does to both.

Readers take no lock: what they read is replaced as a whole, and the counter tells them that it was.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from . import shared

__all__ = ["LOCK", "Epoch", "ForkSafeLock", "epoch"]

# A fork waits this long for a change in progress. Not for ever: the thread that changes something may itself
# wait for one that the forking thread holds.
FORK_PATIENCE_S = 20.0


class ForkSafeLock:
    """A re-entrant lock that a fork waits for, so that the child finds it free and the state whole.

    If the wait timed out, the child gets a fresh lock, after ``repair`` has undone the half-made change.
    """

    def __init__(self) -> None:
        self.repairs: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self._patience_s = FORK_PATIENCE_S
        self._held_for_fork = False
        os.register_at_fork(before=self._before, after_in_parent=self._after, after_in_child=self._in_child)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()

    def _before(self) -> None:
        self._held_for_fork = self._lock.acquire(timeout=self._patience_s)

    def _after(self) -> None:
        if self._held_for_fork:
            self._lock.release()

    def _in_child(self) -> None:
        if self._held_for_fork:
            self._lock.release()
            return
        self._lock = threading.RLock()
        for repair in self.repairs:
            repair()


class Epoch:
    """Counts changes of registries, global policy and active provider; a cache of an older count is stale."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def advance(self) -> None:
        """Say that something has changed."""
        with LOCK:
            self.now += 1
            shared.set_epoch(self.now)


LOCK = ForkSafeLock()
epoch = Epoch()
LOCK.repairs.append(epoch.advance)  # what the count tells of may have changed
