"""A `Backward` by positions: what it says by name, looked up in the forward op's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._errors import nearest
from .types import Backward

__all__ = ["Formula", "formula_of"]


@dataclass(frozen=True)
class Formula:
    """How an op is differentiated, for what runs it: native code, or `tefl.ops._autograd`."""

    op: str
    args: tuple[tuple[str, int], ...]
    """For each argument of the backward op where it comes from: what `Feed` says, and the position of it."""
    grads: tuple[int | None, ...]
    """For each argument of the forward op, keyword-only ones included, which result is its gradient."""
    differentiable: tuple[int, ...]
    """The positions of the forward's results that carry a gradient."""


def formula_of(
    op_name: str, backward: Backward | None, arguments: Sequence[str], results: Sequence[str]
) -> Formula | None:
    """The formula of an op with these arguments and results, in the order of its schema.

    ValueError for a name that the schema does not have.
    """
    if backward is None:
        return None

    def position(given: str | int, *, of_result: bool) -> int:
        known, what = (results, "result") if of_result else (arguments, "argument")
        if given in known:
            return known.index(given)
        if of_result and isinstance(given, int) and 0 <= given < len(results) and not results[given]:
            return given
        hint = nearest(str(given), filter(None, known))
        raise ValueError(f"op {op_name!r}: its Backward names {what} {given!r}, which it has not; {hint}")

    differentiable = backward.differentiable or [name or 0 for name in results[:1]]
    of = {position(name, of_result=False): index for name, index in backward.grads.items()}
    return Formula(
        backward.op,
        tuple((kind, position(name, of_result=kind in ("grad", "output"))) for kind, name in backward.args),
        tuple(of.get(i) for i in range(len(arguments))),
        tuple(position(name, of_result=True) for name in differentiable),
    )
