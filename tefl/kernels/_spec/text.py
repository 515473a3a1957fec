"""What trunk's files say of themselves, read by patterns: parsing them would cost an import milliseconds.

Trunk is ours, and written so that this finds all; a test compares it with what parsing finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from .rules import trunk_files

__all__ = ["exported_names", "hooks_of_trunk"]

_ASKED = re.compile(r"spec(?:_func)?\(\s*[\"'](\w+)[\"']")


@cache
def hooks_of_trunk() -> frozenset[str]:
    """The names that trunk's files ask a backend for."""
    return frozenset(name for file in trunk_files().values() for name in _asked_in(file.read_text()))


def _asked_in(text: str) -> Iterator[str]:
    for match in _ASKED.finditer(text):
        before = text[match.start() - 1 : match.start()]
        if not before.isidentifier():  # not find_spec; a pattern that says so is twenty times as slow
            yield match[1]


def exported_names(path: str) -> list[str]:
    """``__all__`` of trunk's file; empty where trunk has no such file or it has none."""
    file = trunk_files().get(path)
    listed = "" if file is None else file.read_text().partition("\n__all__ = [")[2].partition("]")[0]
    return listed.split('"')[1::2]
