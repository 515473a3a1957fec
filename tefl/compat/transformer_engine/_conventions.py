"""How each op is called and answered in Transformer Engine's convention, against ours: one line an op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch

from tefl.dispatch import declarations
from tefl.dispatch.schema import Schema, schema_of

from ._dtypes import torch_dtype, transformer_engine_dtype

__all__ = ["CONVENTIONS", "Convention", "Mapped", "convention_of"]

_HINTS: Final[Mapping[str, Any]] = {"sm_margin": 0, "chunk_size": 2048 * 32}
"""Advice on how to launch, without a meaning for the result: taken and left aside."""


@dataclass(frozen=True)
class Mapped:
    """A call in Transformer Engine's convention as ours."""

    arguments: dict[str, Any]
    """By our names; what was left out is not here."""
    out: torch.Tensor | None = None
    """Where the first result is to go."""
    unmappable: dict[str, Any] = field(default_factory=dict)
    """By its name: what only a plugin can take, such as a quantizer."""


@dataclass(frozen=True)
class Convention:
    """Transformer Engine's form of one op.

    ``arguments``: its names in order. ``theirs:ours`` where we say it differently, ``tensor_lists:a,b`` where
    one list of lists is several lists of ours; one with a ``?`` is taken, and means nothing to us. These have
    a meaning of their own everywhere: ``ln_out`` (a tensor that receives the first result), ``quantizer``,
    ``otype`` (our ``out_dtype``), ``sm_margin`` and ``chunk_size`` (hints).

    ``results``: our names in order, with None where Transformer Engine has a place that we do not fill.
    """

    arguments: str
    results: str = ""

    @cached_property
    def names(self) -> dict[str, str]:
        """Their name -> ours, ``?`` where it means nothing to us."""
        names: dict[str, str] = {}
        for token in self.arguments.split():
            theirs, _, ours = token.partition(":")
            names[theirs.rstrip("?")] = "?" if theirs.endswith("?") else ours or theirs
        return names

    def to_ours(self, op_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapped:
        """A caller's arguments, positional or by either side's names. TypeError names what is off."""
        if len(args) > len(self.names):
            wanted = ", ".join(self.names)
            raise TypeError(f"{op_name}({wanted}) takes {len(self.names)} arguments, got {len(args)}")
        given = dict(zip(self.names, args, strict=False))
        arguments: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"{op_name} got argument {name!r} twice")
            (given if name in self.names else arguments)[name] = value
        out, unmappable = None, {}
        for name, value in given.items():
            if name == "quantizer" and value is not None:
                unmappable[name] = value
            elif name == "ln_out":
                out = value if isinstance(value, torch.Tensor) else None
                if value is not None and out is None:
                    unmappable[name] = value
            else:
                arguments.update(self._ours(name, value))
        if (
            out is not None
            and arguments.setdefault("out_dtype", out.dtype) is not out.dtype
            and not unmappable
        ):
            asked = arguments["out_dtype"]
            raise TypeError(
                f"{op_name}: ln_out is {out.dtype}, wanted {asked}, which is otype; give one or the other"
            )
        return Mapped(arguments, out, unmappable)

    def _ours(self, name: str, value: Any) -> dict[str, Any]:
        ours = self.names[name]
        if name == "otype":
            return {} if value is None else {"out_dtype": torch_dtype(value)}
        if name == "tensor_lists":
            return dict(zip(ours.split(","), value, strict=False))
        return {} if ours == "?" or name in _HINTS or name == "quantizer" else {ours: value}

    def to_theirs(self, arguments: Mapping[str, Any]) -> list[Any]:
        """All of their positional arguments, for a function of a plugin, out of all of ours by name."""
        return [self._theirs(name, ours, arguments) for name, ours in self.names.items() if ours != "?"]

    def _theirs(self, name: str, ours: str, arguments: Mapping[str, Any]) -> Any:
        if name in _HINTS:
            return _HINTS[name]
        if name in ("ln_out", "quantizer"):
            return None
        if name == "otype":
            first = next(value for value in arguments.values() if isinstance(value, torch.Tensor))
            return transformer_engine_dtype(arguments.get("out_dtype") or first.dtype)
        if name == "tensor_lists":
            lists = (arguments[one] for one in ours.split(","))
            return [list(one) for one in lists if one is not None]
        return arguments[ours]

    def answer(self, op_name: str, result: Any, out: torch.Tensor | None) -> Any:
        """Our results as Transformer Engine has them, the first in ``out`` where that is given.

        ValueError where ``out`` has another shape.
        """
        if not self.results:
            return result
        ours = iter(result if isinstance(result, (tuple, list)) else (result,))
        places: list[Any] = [None if place == "None" else next(ours) for place in self.results.split()]
        if out is not None:
            if out.shape != places[0].shape:
                shapes = f"{tuple(out.shape)}, wanted {tuple(places[0].shape)}"
                raise ValueError(f"{op_name}: ln_out has shape {shapes}, that of the result")
            places[0] = out.copy_(places[0])
        return tuple(places) if len(places) > 1 else places[0]

    def understood(self, answer: Any) -> Any:
        """A plugin's results as ours: in their convention, or, as TE-FL's own examples answer, in ours."""
        places = self.results.split()
        if not places:
            return None
        if isinstance(answer, (tuple, list)) and len(answer) == len(places):
            kept = [value for value, place in zip(answer, places, strict=True) if place != "None"]
            return tuple(kept) if len(kept) > 1 else kept[0]
        return answer


CONVENTIONS: dict[str, Convention] = {
    "layernorm_fwd": Convention(
        "input weight bias eps ln_out quantizer otype sm_margin zero_centered_gamma", "out mu rsigma"
    ),
    "layernorm_bwd": Convention(
        "dz:grad x:input mu rsigma gamma:weight sm_margin zero_centered_gamma eps?", "dinput dweight dbias"
    ),
    "rmsnorm_fwd": Convention(
        "input weight eps ln_out quantizer otype sm_margin zero_centered_gamma", "out None rsigma"
    ),
    "rmsnorm_bwd": Convention(
        "dz:grad x:input rsigma gamma:weight sm_margin zero_centered_gamma eps?", "dinput dweight"
    ),
    "rmsnorm_bwd_add": Convention(
        "dz:grad x:input add rsigma gamma:weight sm_margin zero_centered_gamma", "dinput dweight"
    ),
}
"""By op. One that is not here is called in our convention by everybody."""


def convention_of(op_name: str) -> tuple[Convention, Schema] | None:
    """Their form of an op with our schema; None where the two have one form, or where we have no such op."""
    convention, decl = CONVENTIONS.get(op_name), declarations().get(op_name)
    return (convention, schema_of(op_name)) if convention is not None and decl is not None else None
