"""A provider's library, opened and judged: what it says about itself, or what is wrong with it."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from tefl import _native
from tefl.privateuse1.checks import Defect
from tefl.privateuse1.discovery import built_in_library


class ProviderLibrary(NamedTuple):
    """An opened library. Where `defects` says what is wrong, `handle` and the facts but `name` are None."""

    path: str
    handle: Any
    name: str | None  # the provider's own name
    version: str | None
    abi: str | None  # "major.minor" as the provider was compiled
    alias: str | None  # "cpu", "cuda" or "none"
    defects: tuple[Defect, ...]
    ccl: bool | None = None  # whether it brings collectives of its own

    def claim_defects(self) -> list[Defect]:
        """Return what in this process or this torch stands in the way of claiming it."""
        if self.handle is None:
            return []
        return [Defect(what, remedy) for what, remedy in _native.load().claim_defects(self.handle)]


def open_library(provider: str | os.PathLike[str]) -> ProviderLibrary:
    """Open the library at a path, or a built-in provider by name, and judge it. Starts no runtime."""
    path = os.fspath(built_in_library(str(provider)) or provider)
    try:
        native = _native.load()
    except ImportError as error:
        return unusable_library(path, [Defect(str(error), "a provider needs tefl's compiled part")])
    handle, defects, name = native.load_provider(path)
    if handle is None:
        return unusable_library(path, [Defect(what, remedy) for what, remedy in defects], name or None)
    facts = native.provider_info(handle)
    said = (facts["name"], facts["version"], facts["abi"], facts["alias"])
    return ProviderLibrary(path, handle, *said, (), ccl=facts["ccl"])


def unusable_library(path: str, defects: list[Defect], name: str | None = None) -> ProviderLibrary:
    """Return a library of which only is known what is wrong with it, and its name where it could be read."""
    return ProviderLibrary(path, None, name, None, None, None, tuple(defects))
