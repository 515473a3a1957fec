"""What is known about the calls of one op, from one change of policy or registry to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .policy import SelectionPolicy
from .types import Facts, OpImpl, Slower

__all__ = ["Entry", "Key", "Table"]

Key = tuple[Any, ...]
"""(policy token, device or None, dtype, dtype, ...)"""


@dataclass
class Entry:
    """What is known about one kind of call: an op on one device with these dtypes under one policy."""

    policy: SelectionPolicy
    facts: Facts
    device_type: str
    ranked: list[OpImpl]
    """Allowed by the policy and available here, in order."""
    slower: Mapping[str, Slower]
    """Those of them that name a faster one, whatever the arguments."""
    failed: dict[str, str] = field(default_factory=dict)
    by_form: bool = False
    """Whether which of them serves a call follows from the call's form."""
    announced: set[str] = field(default_factory=set)
    first: tuple[Callable[..., Any], OpImpl] | None = None
    """What runs if it takes the arguments: the first of the ranked that has not failed, once it has run."""

    @property
    def fast(self) -> tuple[Callable[..., Any], OpImpl] | None:
        """The first, if it has no predicate on arguments: what runs without another question."""
        first = self.first
        return first if first is not None and first[1].supports is None else None


class Table:
    """The entries that hold as long as nothing changes."""

    __slots__ = ("entries", "epoch", "verifies")

    def __init__(self, now: int, verifies: bool) -> None:
        self.epoch = now
        self.verifies = verifies
        self.entries: dict[Key, Entry] = {}
