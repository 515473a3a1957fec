"""What error messages share: one-line forms of exceptions, and the nearest known name."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ConfigError", "SpecError", "nearest", "one_line"]


class ConfigError(ValueError):
    """An environment variable or policy whose text cannot be read; says what came and what is accepted."""


class SpecError(ImportError):
    """A backend's specialisation of the kernels cannot be used; names the file or package and what is wrong.

    Never passed over in favour of another implementation: the kernels would silently not be the backend's.
    """


def one_line(error: BaseException) -> str:
    """``"ValueError: the message's first line"``."""
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001 - a plugin's exception; what it is must be told all the same
        text = "(its __str__ raises)"
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that ends a message about an unknown name: the nearest known one, or what there is."""
    import difflib  # 3 ms, and only ever needed when something is misspelt

    names = sorted(set(known))
    if close := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f"the nearest known name is {close[0]!r}"
    return f"known are {', '.join(names)}" if names else "none is known"
