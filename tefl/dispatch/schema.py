"""The declared ops, and what their schemas say about a call: its arguments, defaults, tensors and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from .gradients import Formula, formula_of
from .lock import epoch
from .types import OpDecl

__all__ = ["REQUIRED", "Schema", "declarations", "declare", "device_and_dtypes", "parse", "schema_of"]

_DECLARED: dict[str, OpDecl] = {}
_SCHEMAS: dict[str, Schema] = {}


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()
"""Stands for the default of an argument that has none."""


def declare(decl: OpDecl) -> Callable[[], None]:
    """Record the declaration of an op; returns the function that takes it back.

    A second one of the same name is an error that shows both; so is a schema that `parse` refuses.
    """
    schema = parse(decl)
    if (old := _DECLARED.get(decl.name)) is not None:
        raise ValueError(
            f"op {decl.name!r} is declared twice: {old.schema} (family {old.family}) and {decl.schema} "
            f"(family {decl.family})"
        )
    _SCHEMAS[decl.name] = schema  # first: who finds the declaration asks for it
    _DECLARED[decl.name] = decl
    epoch.advance()
    return lambda: _withdraw(decl.name)


def _withdraw(name: str) -> None:
    del _DECLARED[name], _SCHEMAS[name]
    epoch.advance()


def declarations() -> Mapping[str, OpDecl]:
    """Every declared op by name, in the order of declaration; a read-only live view."""
    return MappingProxyType(_DECLARED)


def schema_of(op_name: str) -> Schema:
    """What the schema of a declared op says."""
    return _SCHEMAS[op_name]


@dataclass(frozen=True)
class Schema:
    """What a call of one op must look like, read once from its schema string."""

    op_name: str
    positional: Mapping[str, Any]
    """Positional arguments in order, with their defaults or REQUIRED."""
    keyword: Mapping[str, Any]
    """Keyword-only arguments in order, with their defaults or REQUIRED."""
    tensors: Mapping[str, str]
    """Those that are tensors, with torch's word for the type, such as Tensor or Optional[Tensor]."""
    slots: tuple[int, ...] | None
    """Their positions; None where one is keyword-only or a list, or where the first may be left out."""
    written: frozenset[str]
    """Those that the schema says are written."""
    results: tuple[bool, ...]
    """For each result whether it is a tensor."""
    numbers: Mapping[str, str]
    """Those that are numbers or switches, with torch's word for the type, such as float or Optional[int]."""
    formula: Formula | None = None
    """How the op is differentiated; None where it is not."""

    @property
    def mutates(self) -> bool:
        """Whether the op writes an argument."""
        return bool(self.written)

    def bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All positional and all keyword-only arguments, defaults filled in. TypeError names what is off."""
        if len(args) > len(self.positional):
            raise TypeError(f"{self} takes {len(self.positional)} positional arguments, got {len(args)}")
        given = dict(zip(self.positional, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"{self} got argument {name!r} twice")
            if name not in self.positional and name not in self.keyword:
                raise TypeError(f"{self} has no argument {name!r}")
            given[name] = value
        filled = {**self.positional, **self.keyword, **given}
        if missing := [name for name, value in filled.items() if value is REQUIRED]:
            raise TypeError(f"{self} needs argument {', '.join(map(repr, missing))}")
        return tuple(filled[name] for name in self.positional), {name: filled[name] for name in self.keyword}

    def demand_types(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """TypeError where an argument that must be a tensor, a list of them or a number is none."""
        given = {**dict(zip(self.positional, args, strict=True)), **kwargs}
        for name, wanted in self.tensors.items():
            if not _is_tensor(given[name], wanted):
                what = "a list of tensors" if "List" in wanted else "a tensor"
                got = type(given[name]).__name__
                raise TypeError(f"{self.op_name}: argument {name!r} must be {what}, got {got}")
        for name, wanted in self.numbers.items():
            if not _is_number(given[name], wanted):
                got = f"{given[name]!r}, a {type(given[name]).__name__}"
                raise TypeError(
                    f"{self.op_name}: argument {name!r} must be {_NUMBERS[_bare(wanted)]}, got {got}"
                )

    def resolved(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """All arguments, without lazily negated or conjugated tensors: kernels read memory as it is.

        ValueError where the op writes such a tensor.
        """
        lazy = [n for n, v in (*zip(self.positional, args, strict=True), *kwargs.items()) if _is_lazy(v)]
        if not lazy:
            return args, kwargs
        if written := self.written.intersection(lazy):
            name = min(written)
            raise ValueError(
                f"{self.op_name}: argument {name!r} is negated or conjugated lazily, and the op writes it. "
                f"Give it {name}.resolve_conj().resolve_neg()."
            )
        return tuple(map(_resolved, args)), {name: _resolved(value) for name, value in kwargs.items()}

    def __str__(self) -> str:
        return f"{self.op_name}({', '.join((*self.positional, *self.keyword))})"


def parse(decl: OpDecl) -> Schema:
    """Read a declaration's schema string. RuntimeError, torch's own, where it is malformed.

    ValueError where a result is a list of tensors, whose members nobody would look at, and where its
    `Backward` names what the schema does not have.
    """
    parsed = torch._C.parse_schema(f"tefl::{decl.name}{decl.schema}")
    arguments, results = parsed.arguments, [str(result.type) for result in parsed.returns]
    for index, type_ in enumerate(results):
        if "List[Tensor]" in type_ or "List[Optional[Tensor]]" in type_:
            raise ValueError(
                f"op {decl.name!r}: result {index} is {type_}; wanted is Tensor. "
                "Return each tensor as a result of its own, or one tensor that holds them all."
            )
    types = {a.name: str(a.type) for a in arguments}
    tensors = {name: type_ for name, type_ in types.items() if "Tensor" in type_}
    return Schema(
        decl.name,
        {a.name: _default(a) for a in arguments if not a.kwarg_only},
        {a.name: _default(a) for a in arguments if a.kwarg_only},
        tensors,
        _slots(arguments, tensors),
        frozenset(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write),
        tuple(type_ == "Tensor" for type_ in results),
        {name: type_ for name, type_ in types.items() if _bare(type_) in _NUMBERS},
        formula_of(decl.name, decl.backward, list(types), [result.name for result in parsed.returns]),
    )


def _is_tensor(value: Any, wanted: str) -> bool:
    if value is None:
        return wanted.startswith("Optional")
    if "List" in wanted:
        is_list = isinstance(value, (list, tuple))
        return is_list and all(m is None or isinstance(m, torch.Tensor) for m in value)
    return isinstance(value, torch.Tensor)


_NUMBERS: Final = {"float": "a number", "int": "a whole number or a torch.dtype", "bool": "True or False"}
"""torch's words; dtypes are ints in a schema that has been read."""


def _bare(type_: str) -> str:
    return type_.removeprefix("Optional[").removesuffix("]")


def _is_number(value: Any, wanted: str) -> bool:
    if value is None:
        return wanted.startswith("Optional")
    if _bare(wanted) == "float":
        return hasattr(value, "__float__")  # a SymFloat, a tensor or numpy's too
    return hasattr(value, "__index__") or isinstance(value, (torch.dtype, torch.SymBool))


def _is_lazy(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_neg() or value.is_conj()
    return isinstance(value, (list, tuple)) and any(map(_is_lazy, value))


def _resolved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.resolve_conj().resolve_neg()
    return [_resolved(member) for member in value] if isinstance(value, (list, tuple)) else value


def _slots(arguments: Sequence[Any], tensors: Mapping[str, str]) -> tuple[int, ...] | None:
    found = [(i, tensors[a.name], a.kwarg_only) for i, a in enumerate(arguments) if a.name in tensors]
    plain = all(type_ in ("Tensor", "Optional[Tensor]") and not option for _, type_, option in found)
    if not found or not plain or found[0][1] != "Tensor":
        return None
    return tuple(i for i, _, _ in found)


def _default(argument: Any) -> Any:
    return argument.default_value if argument.has_default_value() else REQUIRED


def device_and_dtypes(values: Iterable[Any]) -> tuple[torch.device | torch.dtype | None, ...]:
    """The device of the first tensor among argument values, then the dtypes of all in order.

    A list of tensors counts with its distinct dtypes, however long it is.
    """
    device: torch.device | None = None
    dtypes: list[torch.dtype] = []
    for value in values:
        members = value if isinstance(value, (list, tuple)) else (value,)
        tensors = [member for member in members if isinstance(member, torch.Tensor)]
        if tensors and device is None:
            device = tensors[0].device
        dtypes += dict.fromkeys(tensor.dtype for tensor in tensors)
    return (device, *dtypes)
