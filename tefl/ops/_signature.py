"""The arguments of a declared op as its torch schema has them: one flat list, defaults included."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Signature"]


class Signature:
    """A registered op of ours with what calls to it need to know.

    Values are in the order of the schema, keyword-only ones last. ``tensors`` are the positions that hold a
    tensor or an absent one, ``optional`` those that may be None.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._op: Any = getattr(torch.ops.tefl, name).default
        arguments = self._op._schema.arguments
        self.names = tuple(argument.name for argument in arguments)
        self._positional = sum(not argument.kwarg_only for argument in arguments)
        self._keywords = tuple(argument.name for argument in arguments if argument.kwarg_only)
        self._defaults = tuple(argument.default_value for argument in arguments)
        self.optional = frozenset(
            i for i, argument in enumerate(arguments) if isinstance(argument.type, torch.OptionalType)
        )
        self.tensors = tuple(i for i, argument in enumerate(arguments) if _holds_tensor(argument.type))

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Every argument of a call: torch leaves out those that equal the schema's default."""
        left_out = self._defaults[len(args) : self._positional]
        options = zip(self._keywords, self._defaults[self._positional :], strict=True)
        return *args, *left_out, *(kwargs.get(name, default) for name, default in options)

    def call(self, values: tuple[Any, ...]) -> Any:
        """Call the op through the dispatcher, from its top."""
        args, kwargs = self._split(values)
        return self._op(*args, **kwargs)

    def redispatch(self, keyset: torch.DispatchKeySet, values: tuple[Any, ...]) -> Any:
        """Call the op at the highest of these keys."""
        args, kwargs = self._split(values)
        return self._op.redispatch(keyset, *args, **kwargs)

    def _split(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        options = zip(self._keywords, values[self._positional :], strict=True)
        return values[: self._positional], dict(options)


def _holds_tensor(type_: Any) -> bool:
    inner = type_.getElementType() if isinstance(type_, torch.OptionalType) else type_
    return isinstance(inner, torch.TensorType)
