"""Under TEFL_CHECK=1: results are compared with the fake function's promise and with the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .adapt import same_layout
from .schema import Schema
from .types import BackendImplKind, Deviation, OpDecl, OpImpl
from .values import described, mapped, on_meta, tensors

__all__ = ["Verified"]

# How far a result may be off: so many units in the last place of its own dtype, and so many of those of the
# arithmetic (float32, float64 for float64) at the largest value of the result. The latter because an element
# in which terms cancel may be much smaller than what it was computed from.
_ULPS_OF_EACH = 4
_ULPS_OF_LARGEST = 64


class Verified:
    """Calls an implementation and raises `Deviation` where its results are not those that the op has."""

    def __init__(self, decl: OpDecl, schema: Schema, call: Callable[..., Any], impl: OpImpl) -> None:
        self.impl = impl
        self._decl, self._schema, self._call = decl, schema, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = _copied(args), _copied(kwargs)
        got = self._call(*args, **kwargs)
        self._compare_forms(got, *given)
        if self.impl.kind is not BackendImplKind.REFERENCE:
            self._compare_values(got, (args, kwargs), given)
        return got

    def _compare_forms(self, got: Any, args: Any, kwargs: Any) -> None:
        wanted = self._decl.fake(*on_meta(args), **on_meta(kwargs))
        for index, (have, want) in enumerate(zip(tensors(got), tensors(wanted), strict=True)):
            is_same = have.shape == want.shape and have.dtype == want.dtype and same_layout(have, want)
            if not is_same:
                promise = f"the fake function promises {described(want)}"
                self._report(f"result {index} is {described(have)}, {promise}", (args, kwargs))

    def _compare_values(self, got: Any, after: Any, given: Any) -> None:
        if not self._schema.mutates:
            for index, (have, want) in enumerate(zip(tensors(after), tensors(given), strict=True)):
                if not _is_same(have, want):
                    self._report(f"tensor argument {index} was written, which the schema does not say", given)
        exact = self._decl.reference(*given[0], **given[1])
        for index, (have, want) in enumerate(zip(tensors(got), tensors(exact), strict=True)):
            if (error := _error(have, want)) is not None:
                self._report(f"result {index} differs from the reference: {error}", given)
        if self._schema.mutates:
            # The reference has written its copies as the implementation has written the arguments.
            for index, (have, want) in enumerate(zip(tensors(after), tensors(given), strict=True)):
                if (error := _error(have, want)) is not None:
                    self._report(f"tensor argument {index} differs from the reference: {error}", given)

    def _report(self, what: str, given: Any) -> None:
        shapes = ", ".join(map(described, tensors(given)))
        raise Deviation(
            f"Op {self.impl.op_name!r}: implementation {self.impl.impl_id!r}, {what} (arguments: {shapes})"
        )


def _is_same(have: torch.Tensor, want: torch.Tensor) -> bool:
    if have.shape != want.shape or have.dtype != want.dtype or have.device != want.device:
        return False  # its data has been replaced
    return torch.allclose(have, want, rtol=0, atol=0, equal_nan=True)


def _error(have: torch.Tensor, want: torch.Tensor) -> str | None:
    """How far one is from the other, None where that is no more than rounding."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"{described(have)}, wanted {described(want)}"
    if have.numel() == 0 or torch.equal(have, want):
        return None
    if not have.is_floating_point():
        return f"{int((have != want).sum())} of {have.numel()} elements are unequal"
    a, b = have.double(), want.double()
    off = (a - b).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    off[(a == b) | (a.isnan() & b.isnan())] = 0
    unit = torch.finfo(have.dtype).eps
    wide = torch.finfo(torch.float32).eps if have.dtype is not torch.float64 else unit
    finite = b.abs().nan_to_num(posinf=0.0, neginf=0.0, nan=0.0)
    allowed = _ULPS_OF_EACH * unit * finite + _ULPS_OF_LARGEST * wide * finite.max()
    if bool((off <= allowed).all()):
        return None
    worst = int((off - allowed).flatten().argmax())
    distance, is_, should = (float(t.flatten()[worst]) for t in (off, a, b))
    beyond = f"{int((off > allowed).sum())} of {have.numel()} elements by more than rounding"
    return f"off by {distance:.3g} at element {worst} ({is_:.6g}, wanted {should:.6g}), {beyond}"


def _copied(value: Any) -> Any:
    return mapped(value, torch.clone)
