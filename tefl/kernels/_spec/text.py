"""What trunk's files say of themselves, found by text: parsing them would cost an import milliseconds.

Trunk is ours, and written so that this finds all; a test compares it with what parsing finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from .rules import trunk_files

__all__ = ["exported_names", "hooks_of_trunk"]

_CALLS = "spec(", "spec_func("


@cache
def hooks_of_trunk() -> frozenset[str]:
    """The names that trunk's files ask a backend for."""
    return frozenset(name for file in trunk_files().values() for name in _asked_in(file.read_text()))


def _asked_in(text: str) -> Iterator[str]:
    for call in _CALLS:
        for before, after in pairwise(text.split(call)):
            argument = after.lstrip()
            if argument[:1] in {'"', "'"} and not before[-1:].isidentifier():  # not find_spec
                yield argument[1:].partition(argument[0])[0]


def exported_names(path: str) -> list[str]:
    """``__all__`` of trunk's file; empty where trunk has no such file or it has none."""
    file = trunk_files().get(path)
    listed = "" if file is None else file.read_text().partition("\n__all__ = [")[2].partition("]")[0]
    return listed.split('"')[1::2]
