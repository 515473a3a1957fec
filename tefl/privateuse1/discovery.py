"""Which providers there are, and which one the user chose. No provider's library is opened here."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import torch

from tefl._errors import nearest
from tefl.privateuse1.backend import PrivateUse1Backend
from tefl.privateuse1.checks import Defect

GROUP: Final = "tefl.providers"

_LIBRARY_FOLDER: Final = Path(__file__).parent.parent / "lib"
_BUILT_IN_AUTOCAST: Final = {"sim": torch.bfloat16, "cuda": torch.float16}  # cuda's is torch.cuda's own


class Candidate(NamedTuple):
    """A provider that could be claimed. `load` returns its backend and may raise anything."""

    name: str
    kind: Literal["built-in", "entry point", "path"]
    source: str  # the library's path, or the distribution that has the entry point
    load: Callable[[], PrivateUse1Backend]


class Choice(NamedTuple):
    """Who is to be claimed: `candidate`, or nobody and why; `defect` where the choice cannot be met."""

    candidate: Candidate | None
    reason: str
    defect: Defect | None = None
    ambiguous: bool = False


def built_in_library(name: str) -> Path | None:
    """Return the path of the built-in provider `name`, None if tefl was built without one of that name."""
    path = _LIBRARY_FOLDER / f"tefl_{name}.so"
    return path if path.is_file() else None


def built_in_candidates() -> list[Candidate]:
    """Return the providers that come with tefl."""
    found = []
    for path in sorted(_LIBRARY_FOLDER.glob("tefl_*.so")):
        name = path.stem.removeprefix("tefl_")
        backend = PrivateUse1Backend(name, path, _BUILT_IN_AUTOCAST.get(name))
        found.append(Candidate(name, "built-in", str(path), lambda backend=backend: backend))  # type: ignore[misc]
    return found


def installed_candidates() -> list[Candidate]:
    """Return the providers of installed packages, from their entry points in the group `tefl.providers`."""
    return [_of_entry_point(point) for point in importlib.metadata.entry_points(group=GROUP)]


def _of_entry_point(point: importlib.metadata.EntryPoint) -> Candidate:
    source = f"{point.dist.name} {point.dist.version}" if point.dist else point.value

    def load() -> PrivateUse1Backend:
        found = point.load()
        backend = found if isinstance(found, PrivateUse1Backend) else found()
        if not isinstance(backend, PrivateUse1Backend):
            raise TypeError(f"{point.value} is neither a PrivateUse1Backend nor a function that returns one")
        return backend

    return Candidate(point.name, "entry point", source, load)


def _of_path(path: str) -> Candidate:
    # The library's own name is not known before it is loaded: "" stands for it.
    backend = PrivateUse1Backend("", os.path.abspath(path))
    return Candidate("", "path", os.path.abspath(path), lambda: backend)


def _is_path(setting: str) -> bool:
    return "/" in setting or setting.endswith(".so")


def names_an_installed_one(setting: str, built_in: Sequence[Candidate]) -> bool:
    """Return whether only an installed provider can be meant: no path, no built-in one, not none.

    The names of built-in providers are theirs: an installed one of the same name is chosen by its path.
    """
    return not _is_path(setting) and setting not in ("none", *(candidate.name for candidate in built_in))


def choose(setting: str | None, built_in: Sequence[Candidate], installed: Sequence[Candidate]) -> Choice:
    """Decide who is claimed. `setting` is TEFL_PROVIDER, None if unset; a pure function."""
    if setting == "none":
        return Choice(None, "TEFL_PROVIDER=none")
    if setting is None:
        return _the_only_one(installed)
    if _is_path(setting):
        return Choice(_of_path(setting), f"TEFL_PROVIDER={setting}")
    found = [candidate for candidate in (*built_in, *installed) if candidate.name == setting]
    if len(found) == 1:
        return Choice(found[0], f"TEFL_PROVIDER={setting}")
    return Choice(None, f"TEFL_PROVIDER={setting}", _unmet(setting, found, [*built_in, *installed]))


def _the_only_one(installed: Sequence[Candidate]) -> Choice:
    if not installed:
        return Choice(None, "no provider is installed and TEFL_PROVIDER is not set")
    if len(installed) == 1:
        only = installed[0]
        return Choice(only, f"the only installed provider, {only.name} of {only.source}")
    names = ", ".join(f"{candidate.name} ({candidate.source})" for candidate in installed)
    reason = f"several device providers are installed and none is chosen: {names}"
    return Choice(None, reason, ambiguous=True)


def _unmet(setting: str, found: Sequence[Candidate], known: Sequence[Candidate]) -> Defect:
    if found:
        sources = " and ".join(candidate.source for candidate in found)
        return Defect(
            f"TEFL_PROVIDER={setting!r} names more than one provider: {sources}",
            "uninstall one, or set TEFL_PROVIDER to the path of the library that is meant",
        )
    return Defect(
        f"TEFL_PROVIDER={setting!r} names no provider",
        f"use an installed name, a path to a provider's library, or none; "
        f"{nearest(setting, [candidate.name for candidate in known])}",
    )
