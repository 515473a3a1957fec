"""Choosing, per call, the implementation that computes an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .schema import declarations, declare
from .types import Backward, BackendImplKind, DispatchError, Facts, Feed, NotSupported, OpDecl, OpImpl, Slower


def set_builtins(register: Callable[[Any], None]) -> None:
    """Say which function adds the built-in implementations to a registry; it runs at first use."""


def set_active_provider(
    *, name: str | None, device_name: str | None, alias: str | None, arch: Callable[[int], tuple[int, int] | None] | None
) -> None:
    """Told by the broker who owns the PrivateUse1 device; None for all takes it back."""


def route(op_name: str) -> Callable[..., Any]:
    """The Python callable behind an op's backend keys."""
    return declarations()[op_name].reference
