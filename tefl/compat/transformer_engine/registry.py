"""TE-FL's registry over tefl's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

import tefl

from ._conventions import convention_of
from .types import OpImpl, PluginFunction

__all__ = ["OpRegistry"]


class OpRegistry:
    """The implementations of ops as TE-FL shows them: every function takes Transformer Engine's arguments."""

    def __init__(self, registry: tefl.OpRegistry | None = None) -> None:
        self.tefl = registry if registry is not None else tefl.OpRegistry()
        """The registry behind."""

    def register_impl(self, impl: Any, **_: Any) -> None:
        """Add one implementation; a second one of the same op and impl_id is an error."""
        self.tefl.register_impl(impl)

    def register_many(self, impls: Iterable[Any], **_: Any) -> None:
        """Add several implementations, all or none."""
        self.tefl.register_many(impls)

    def get_implementations(self, op_name: str) -> list[OpImpl]:
        """The implementations of an op."""
        return [shown(impl) for impl in self.tefl.implementations(op_name)]

    def get_implementation(self, op_name: str, impl_id: str) -> OpImpl | None:
        """One implementation, None where it is not registered."""
        found = (impl for impl in self.tefl.implementations(op_name) if impl.impl_id == impl_id)
        return next(map(shown, found), None)

    def list_operators(self) -> list[str]:
        """The ops that have an implementation, sorted."""
        return sorted(self.tefl.op_names())


def shown(impl: tefl.OpImpl) -> OpImpl:
    """An implementation with a function in Transformer Engine's convention: a plugin's own as it is."""
    if isinstance(impl.fn, PluginFunction):
        return impl.fn.impl

    def function(*args: Any, **kwargs: Any) -> Any:
        mapping = convention_of(impl.op_name)
        if mapping is None:
            return impl.fn(*args, **kwargs)
        convention, schema = mapping
        mapped = convention.to_ours(impl.op_name, args, kwargs)
        if mapped.unmappable:
            raise refusal(impl.op_name, mapped.unmappable, f"{impl.impl_id!r} takes")
        positional, options = schema.bind((), mapped.arguments)
        schema.demand_types(positional, options)
        with torch.no_grad():
            return convention.answer(impl.op_name, impl.fn(*positional, **options), mapped.out)

    return OpImpl(impl.op_name, impl.impl_id, impl.kind, function, impl.vendor, impl.priority)


def refusal(op_name: str, unmappable: dict[str, Any], who: str) -> NotImplementedError:
    """The error that names the arguments that tefl cannot express."""
    given = ", ".join(f"{name}={type(value).__name__}" for name, value in sorted(unmappable.items()))
    names = " and ".join(f"{name}=None" for name in sorted(unmappable))
    return NotImplementedError(f"{op_name}: {given} cannot be mapped, {who} plain tensors; pass {names}")
