"""What error messages share: one-line forms of exceptions, names of dtypes, and the nearest known name."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ConfigError", "SpecError", "close_match", "dtype_name", "nearest", "one_line"]


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


def dtype_name(dtype: object) -> str:
    """``"float32"`` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def close_match(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that an unknown one is most likely meant for, if one is alike by ``cutoff`` of 1."""
    import difflib  # 3 ms, and only ever needed when something is misspelt

    return next(iter(difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=cutoff)), None)


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that ends a message about an unknown name: the nearest known one, or what there is."""
    names = sorted(set(known))
    if (close := close_match(name, names)) is not None:
        return f"the nearest known name is {close!r}"
    return f"known are {', '.join(names)}" if names else "none is known"
