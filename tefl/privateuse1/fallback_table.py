"""What ran on copies in host memory, on a device whose memory can be computed on nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tefl import _native
from tefl._log import logger

__all__ = ["Fallback", "FallbackTable", "fallbacks", "notice", "reset_fallbacks"]


class Fallback(NamedTuple):
    """One operator's copies since the start or `reset_fallbacks`."""

    op: str
    """The operator with its overload, "aten::add.Tensor"."""
    calls: int
    bytes_to_host: int
    bytes_to_device: int

    @property
    def bytes_copied(self) -> int:
        """Bytes copied in both directions."""
        return self.bytes_to_host + self.bytes_to_device


class FallbackTable(tuple[Fallback, ...]):
    """The operators that were copied for, the most bytes first. `print` shows a table."""

    __slots__ = ()

    def of(self, op: str) -> Fallback:
        """Return the row of an operator, "aten::add.Tensor"; zeros where it never was copied for."""
        return next((row for row in self if row.op == op), Fallback(op, 0, 0, 0))

    def __str__(self) -> str:
        return "\n".join(self._lines()) if self else "no operator ran on copies in host memory"

    def _lines(self) -> Iterator[str]:
        width = max(len(row.op) for row in self)
        yield f"{'op':{width}}  {'calls':>8}  {'to host':>14}  {'to device':>14}  bytes"
        for row in self:
            yield f"{row.op:{width}}  {row.calls:8}  {row.bytes_to_host:14}  {row.bytes_to_device:14}"


def fallbacks() -> FallbackTable:
    """Return what each operator copied between the device and the host to run on the CPU.

    Empty on a device with an alias, where operators run without copies. Copies that a program asked for
    (`.cpu()`, `.to(...)`) count only where they convert dtype or strides on the way.
    """
    rows = [Fallback(*row) for row in _native.load().fallbacks()]
    return FallbackTable(sorted(rows, key=lambda row: (-row.bytes_copied, row.op)))


def reset_fallbacks() -> None:
    """Start counting anew. The notice of an operator still comes only once in a process."""
    _native.load().reset_fallbacks()


def notice(op: str) -> None:
    """Tell the log, once for each operator, that it has no kernel on the device."""
    logger().info(
        "%s has no kernel for this device: it runs on the CPU, on copies of its operands "
        "(tefl.privateuse1.fallbacks() counts them)",
        op,
    )
