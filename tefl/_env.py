"""The one place that reads environment variables: every variable of the project, its parser and its default.

A value that cannot be read raises `ConfigError` when `get` is asked for it, never on import. An empty value
is as if unset. Nothing is cached here: whoever needs a value across calls keeps it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._errors import ConfigError, nearest

__all__ = [
    "VARIABLES",
    "Setting",
    "Variable",
    "get",
    "normal_vendor",
    "parse_order",
    "parse_token",
    "sources",
    "unknown",
]

KINDS = ("flagos", "vendor", "reference")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
TOKEN_FORMS = "flagos, vendor, reference, vendor:NAME, impl:ID"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class _Bad(Exception):
    """The part of a value that a parser cannot read; `get` adds the variable and the accepted forms."""


def normal_vendor(name: str) -> str:
    """A vendor's name as it is compared: lower case, and "cuda" is nvidia's."""
    lower = name.strip().lower()
    return "nvidia" if lower == "cuda" else lower


def parse_token(text: str) -> str:
    """One element of an order in its canonical form: "flagos", "vendor:nvidia", "impl:default.flagos"."""
    head, colon, name = (part.strip() for part in text.partition(":"))
    if not colon and head.lower() in KINDS:
        return head.lower()
    if colon and head.lower() in ("vendor", "impl") and _NAME.fullmatch(name):
        return f"{head.lower()}:{normal_vendor(name) if head.lower() == 'vendor' else name}"
    raise ConfigError(f"{text.strip()!r} is no element of an order: accepted are {TOKEN_FORMS}")


def parse_order(text: str) -> tuple[str, ...]:
    """An order such as "vendor:acme|flagos": its tokens in canonical form."""
    return tuple(parse_token(part) for part in text.split("|"))


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise _Bad(text)
    return text == "1"


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for value in allowed:
            if text.lower() == value.lower():
                return value
        raise _Bad(text)

    return parse


def _names(
    pattern: re.Pattern[str], normal: Callable[[str], str] = str.strip
) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            if not pattern.fullmatch(part):
                raise _Bad(part)
        return tuple(dict.fromkeys(normal(part) for part in parts))

    return parse


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise _Bad(text)
    return text


def _per_op(text: str) -> dict[str, tuple[str, ...]]:
    orders: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        op, equals, order = (piece.strip() for piece in part.partition("="))
        if not equals or not _NAME.fullmatch(op) or op in orders:
            raise _Bad(part)
        try:
            orders[op] = parse_order(order)
        except ConfigError as error:
            raise _Bad(part) from error
    if not orders:
        raise _Bad(text)
    return orders


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise _Bad(text)
    return int(text)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise _Bad(text)
    return int(text)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if match is None or int(match[1]) == 0:
        raise _Bad(text)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text):
        raise _Bad(text)
    return float(text)


def _faults(text: str) -> str:
    for part in text.split(","):
        if not re.fullmatch(r"[a-z_]+:[1-9]\d*\*?", part):
            raise _Bad(part)
    return text


@dataclass(frozen=True)
class Variable:
    """One environment variable: ``forms`` are the accepted values in words."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    forms: str
    doc: str


@dataclass(frozen=True)
class Setting:
    """A variable as `python -m tefl info` shows it."""

    name: str
    value: Any
    source: str
    """"environment" or "default"."""
    doc: str
    error: str | None = None


_BIT = "1 or 0"
_VENDORS = "vendor names separated by commas, such as nvidia,acme"
_TABLE = (
    Variable(
        "TE_FL_PREFER", _choice(*KINDS), None, "flagos, vendor or reference", "the kind that is tried first"
    ),
    Variable(
        "TE_FL_PREFER_VENDOR", _switch, False, _BIT, "older form of TE_FL_PREFER=vendor; TE_FL_PREFER wins"
    ),
    Variable(
        "TE_FL_STRICT", _switch, False, _BIT, "a chosen implementation that fails is an error, no fallback"
    ),
    Variable("TE_FL_ALLOW_VENDORS", _names(_NAME, normal_vendor), None, _VENDORS, "no other vendor may run"),
    Variable("TE_FL_DENY_VENDORS", _names(_NAME, normal_vendor), (), _VENDORS, "these vendors may not run"),
    Variable(
        "TE_FL_PER_OP",
        _per_op,
        {},
        f"op=token|token;op2=token, each op once, a token one of {TOKEN_FORMS}",
        "the whole order for single ops",
    ),
    Variable(
        "TE_FL_PLUGIN_MODULES",
        _names(_MODULE),
        (),
        "module names separated by commas, such as my_plugin,other.plugin",
        "plugins to load besides the installed ones",
    ),
    Variable("TE_FL_SKIP_CUDA", _switch, False, _BIT, "leave the CUDA kernels out, at build and at run time"),
    Variable("CUDA_HOME", str, None, "a folder", "where the CUDA toolkit is, for the build"),
    Variable("CUDA_PATH", str, None, "a folder", "the same, where CUDA_HOME is unset"),
    Variable(
        "TEFL_LOG_LEVEL", _choice(*LOG_LEVELS), "INFO", ", ".join(LOG_LEVELS), "level of the logger TE-FL"
    ),
    Variable(
        "TEFL_KERNEL_BACKEND",
        _name,
        None,
        "an installed kernel backend's name, or none",
        "whose specialisations of the Triton kernels are used; none: trunk alone",
    ),
    Variable(
        "TEFL_CHECK",
        _switch,
        False,
        _BIT,
        "every result is compared with the fake function and the reference",
    ),
    Variable(
        "TEFL_PROVIDER",
        str,
        None,
        "a provider's name, a path to its library, or none",
        "who claims the PrivateUse1 device",
    ),
    Variable(
        "TEFL_DEVICE_NAME", str, None, "a name of a-z and _", "the device's name; default: the provider's own"
    ),
    Variable(
        "TEFL_CCL_CHECK",
        _switch,
        False,
        _BIT,
        "a process group tries its collectives on known values when it is made",
    ),
    Variable(
        "TORCHELASTIC_RESTART_COUNT",
        _number,
        0,
        "a number",
        "set by torchrun: how often it has started the ranks again; their keys in its store are kept apart",
    ),
    Variable("TEFL_SIM_DEVICES", _count, 2, "a number from 1 to 64", "how many devices the sim provider has"),
    Variable(
        "TEFL_SIM_CAPACITY", _size, None, "bytes, or a number with K, M or G", "memory of one sim device"
    ),
    Variable(
        "TEFL_SIM_CHECKED", _switch, False, _BIT, "host code that touches sim's memory in passing faults"
    ),
    Variable(
        "TEFL_SIM_OPAQUE", _switch, False, _BIT, "sim has memory that can be computed on nowhere (alias none)"
    ),
    Variable(
        "TEFL_SIM_FAULTS",
        _faults,
        None,
        "function:n separated by commas, such as malloc:100,stream_sync:3; n* for every n-th call",
        "which calls of sim's functions fail; memcpy, memset, launch: later, on the stream; hang: never end",
    ),
    Variable(
        "TEFL_SYNC_TIMEOUT",
        _seconds,
        0.0,
        "seconds, 0 for no end",
        "after how long a wait for the device gives up and says what it waited for",
    ),
)
VARIABLES = {variable.name: variable for variable in _TABLE}


def get(name: str) -> Any:
    """The parsed value of a variable of the table, its default where it is unset or empty."""
    variable = VARIABLES[name]
    text = os.environ.get(name, "")
    if not text:
        return variable.default
    try:
        return variable.parse(text.strip())
    except _Bad as bad:
        part = f": cannot read {bad.args[0]!r}" if bad.args[0] != text else ""
        raise ConfigError(f"{name}={text!r}{part}; accepted: {variable.forms}") from bad.__cause__


def is_set(name: str) -> bool:
    """Whether the environment gives the variable a value."""
    return bool(os.environ.get(name))


def sources() -> list[Setting]:
    """Every variable of the table with its value and where that comes from; errors as text, none raised."""
    return [_setting(variable) for variable in _TABLE]


def _setting(variable: Variable) -> Setting:
    source = "environment" if is_set(variable.name) else "default"
    try:
        return Setting(variable.name, get(variable.name), source, variable.doc)
    except ConfigError as error:
        return Setting(variable.name, os.environ[variable.name], source, variable.doc, str(error))


def unknown() -> dict[str, str]:
    """Variables with one of our prefixes that are not in the table: name -> clause with the nearest known."""
    prefixed = (name for name in os.environ if name.startswith(("TE_FL_", "TEFL_")))
    strangers = (name for name in prefixed if name not in VARIABLES)
    ours = [name for name in VARIABLES if name.startswith("TE")]
    return {name: nearest(name, ours) for name in sorted(strangers)}
