"""Arguments for an op out of a few words: shapes not given follow from what the op's check accepts."""

from __future__ import annotations

import argparse
import ast
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tefl.dispatch import OpDecl
from tefl.dispatch.schema import REQUIRED, Schema, parse
from tefl.dispatch.values import named_dtype

__all__ = ["example_arguments", "named_shape", "named_value", "undeclared_arguments"]

Shape = tuple[int, ...]
Form = tuple[Shape, torch.dtype]
NamedShape = tuple[str | None, Shape]

DEFAULT_SHAPE = (4, 64)


def named_shape(text: str) -> NamedShape:
    """``"4,8"`` or ``"weight=8"``."""
    name, equals, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape: give sizes such as 4,8 or weight=8"
        ) from None
    if any(size < 0 for size in shape):
        raise argparse.ArgumentTypeError(f"{text!r} has a negative size")
    return (name if equals else None), shape


def named_value(text: str) -> tuple[str, Any]:
    """``"eps=1e-6"``: a name and a Python literal, or a torch dtype by its name."""
    name, _, value = text.partition("=")
    if (dtype := named_dtype(value)) is not None:
        return name, dtype
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        hint = "give NAME=VALUE with a Python literal or a torch dtype"
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read: {hint}") from None


def example_arguments(
    decl: OpDecl,
    shapes: Sequence[NamedShape],
    dtype: torch.dtype,
    device: torch.device,
    others: Mapping[str, Any],
) -> dict[str, Any]:
    """All arguments that the op requires, by name, with the given shapes, dtype, device and other values.

    A required tensor without a shape gets the first form that the op's check accepts beside the others: like
    the first tensor, its last dimension, or its rows; in ``dtype`` or, for statistics, float32. ValueError
    where a name is unknown, a value is missing, or nothing is accepted (with the check's own words).
    """
    schema = parse(decl)
    _demand_known((*(name for name, _ in shapes if name), *others), schema)
    required = [name for name in schema.tensors if {**schema.positional, **schema.keyword}[name] is REQUIRED]
    given = _by_name(shapes, required)
    forms = _forms(required, given, dtype)
    complaints: list[str] = []
    for choice in itertools.product(*forms.values()):
        chosen = dict(zip(forms, choice, strict=True))
        complaint = _complaint(decl, schema, chosen, others)
        if complaint is None:
            tensors = {name: torch.zeros(s, dtype=d, device=device) for name, (s, d) in chosen.items()}
            return {**tensors, **others}
        complaints.append(complaint)
    guessed = [name for name in required[1:] if name not in given]
    raise ValueError(f"{decl.name} accepts no such arguments: {_telling(complaints, guessed)}")


def undeclared_arguments(
    shapes: Sequence[NamedShape], dtype: torch.dtype, device: torch.device
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors of the given shapes for an op whose schema nobody knows: those without a name, and the rest."""
    made = [(name, torch.zeros(shape, dtype=dtype, device=device)) for name, shape in shapes]
    unnamed = [tensor for name, tensor in made if name is None]
    return unnamed, {name: tensor for name, tensor in made if name is not None}


def _demand_known(names: Iterable[str], schema: Schema) -> None:
    for name in names:
        if name not in schema.positional and name not in schema.keyword:
            raise ValueError(f"{schema} has no argument {name!r}")


def _by_name(shapes: Sequence[NamedShape], required: Sequence[str]) -> dict[str, Shape]:
    named = {name: shape for name, shape in shapes if name is not None}
    unnamed = [shape for name, shape in shapes if name is None]
    free = [name for name in required if name not in named]
    if len(unnamed) > len(free):
        raise ValueError(f"{len(unnamed)} shapes without a name for {len(free)} tensors: {', '.join(free)}")
    return {**dict(zip(free, unnamed, strict=False)), **named}


def _forms(required: Sequence[str], given: Mapping[str, Shape], dtype: torch.dtype) -> dict[str, list[Form]]:
    """What each tensor argument may look like, likeliest first; what has no shape is guessed."""
    first = given.get(required[0], DEFAULT_SHAPE) if required else DEFAULT_SHAPE
    forms: dict[str, list[Form]] = {name: [(shape, dtype)] for name, shape in given.items()}
    forms |= {name: [(first, dtype)] for name in required[:1]}
    for name in required[1:]:
        shapes = [given[name]] if name in given else [first, first[-1:], first[:-1]]
        forms[name] = list(
            dict.fromkeys((shape, kind) for kind in (dtype, torch.float32) for shape in shapes)
        )
    return forms


def _telling(complaints: Sequence[str], guessed: Sequence[str]) -> str:
    """The first complaint that is not about a tensor whose form was only guessed."""
    return next((text for text in complaints if not any(name in text for name in guessed)), complaints[0])


def _complaint(
    decl: OpDecl, schema: Schema, forms: Mapping[str, Form], others: Mapping[str, Any]
) -> str | None:
    """What the op's check or fake function says of such tensors; made without memory."""
    try:
        tensors = {name: torch.empty(s, dtype=d, device="meta") for name, (s, d) in forms.items()}
        args, kwargs = schema.bind((), {**tensors, **others})
        if decl.check is not None:
            decl.check(*args, **kwargs)
        decl.fake(*args, **kwargs)
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)
    return None
