"""Checks of an op's arguments, for the ``check`` functions of declarations.

Each raises before any kernel runs, and says: which op, which argument, what came, what is wanted, what to do.
Wrong dtypes are a TypeError, all else is a ValueError. Sizes that a compiler traces as unknown become
assertions in the compiled program; known ones cost a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["FLOATS", "eps", "floating", "last_dimension", "out_dtype", "same_device", "same_dtype", "shape"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What the ops compute on: 8-bit floats are storage formats with scales, and have ops of their own."""

_FLOAT_SET = frozenset(FLOATS)
_FLOAT_NAMES = "float16, bfloat16, float32 or float64"


def floating(op: str, name: str, tensor: Tensor) -> None:
    """The tensor has one of `FLOATS` as dtype."""
    if tensor is None:
        raise _absent(op, name)
    if tensor.dtype not in _FLOAT_SET:
        raise TypeError(
            f"tefl::{op}: {name} has dtype {tensor.dtype}; wanted {_FLOAT_NAMES}. "
            f"Convert it, for example with {name}.float()."
        )


def out_dtype(op: str, dtype: torch.dtype | None) -> None:
    """The option ``out_dtype`` is absent or one of `FLOATS`."""
    if dtype is not None and dtype not in _FLOAT_SET:
        raise TypeError(
            f"tefl::{op}: out_dtype is {dtype}; wanted {_FLOAT_NAMES}, or None for that of input."
        )


def same_dtype(op: str, name: str, tensor: Tensor, wanted: torch.dtype, why: str) -> None:
    """The tensor has exactly this dtype; ``why`` says whose it is ("the dtype of input")."""
    if tensor is None:
        raise _absent(op, name)
    if tensor.dtype is not wanted:
        raise TypeError(
            f"tefl::{op}: {name} has dtype {tensor.dtype}; wanted {wanted}, {why}. "
            f"Convert it with {name}.to({wanted})."
        )


def same_device(op: str, first: Tensor, *, of: str = "input", **others: Tensor | None) -> None:
    """Every tensor, given by its name, is on the device of the first, whose name is ``of``."""
    if first is None:
        raise _absent(op, of)
    wanted = first.device
    for name, tensor in others.items():
        if tensor is not None and tensor.device != wanted:
            raise ValueError(
                f"tefl::{op}: {name} is on {tensor.device} but {of} is on {wanted}; wanted all on one "
                f'device. Move it with {name}.to("{wanted}").'
            )


def shape(op: str, name: str, tensor: Tensor, wanted: Sequence[int], why: str) -> None:
    """The tensor has this shape; ``why`` says where it comes from ("the shape of input")."""

    def message() -> str:
        return f"tefl::{op}: {name} has shape {_shown(tensor.shape)}; wanted {_shown(wanted)}, {why}."

    if tensor.dim() != len(wanted):
        raise ValueError(message())
    for have, want in zip(tensor.shape, wanted, strict=True):
        _hold(have == want, message)


def last_dimension(op: str, name: str, tensor: Tensor) -> None:
    """The tensor has a last dimension, with something in it."""
    if tensor.dim() == 0:
        raise ValueError(
            f"tefl::{op}: {name} has no dimension (shape ()); wanted at least one, of which the last is "
            f"normalised. Give it one with {name}.unsqueeze(0)."
        )
    _hold(
        tensor.shape[-1] != 0,
        lambda: (
            f"tefl::{op}: {name} has shape {_shown(tensor.shape)}; wanted a last dimension of at least 1: "
            "there is no mean of no values."
        ),
    )


def eps(op: str, value: float) -> None:
    """eps is finite and not negative."""
    if not 0.0 <= value < math.inf:
        raise ValueError(f"tefl::{op}: eps is {value}; wanted a finite number of at least 0, such as 1e-5.")


def _absent(op: str, name: str) -> TypeError:
    """For a required tensor: torch lets None pass for one."""
    return TypeError(f"tefl::{op}: {name} is None; wanted a tensor.")


def _hold(condition: bool | torch.SymBool, message: Callable[[], str]) -> None:
    """Raise ValueError unless the condition holds; one on traced sizes is left to the compiler to keep."""
    if condition is True:
        return
    if condition is False:
        raise ValueError(message())
    torch._check_value(condition, message)  # type: ignore[no-untyped-call]


def _shown(sizes: Sequence[int]) -> str:
    return str(tuple(sizes))
