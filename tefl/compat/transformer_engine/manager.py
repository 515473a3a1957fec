"""TE-FL's manager over tefl's: calls in Transformer Engine's convention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tefl
from tefl.dispatch import recording
from tefl.dispatch.blame import name_implementation

from ._conventions import Mapped, convention_of
from .registry import OpRegistry, refusal, shown
from .types import Door, PluginFunction, open_door

__all__ = ["OpManager", "get_default_manager", "reset_default_manager"]


class OpManager:
    """Chooses and runs implementations as `tefl.OpManager` does, called in Transformer Engine's convention.

    A plugin's function gets the call as it came and its answer is returned as it is. tefl's own
    implementations get it in our convention and their results are answered in Transformer Engine's:
    ``(out, None, rsigma)`` for rmsnorm_fwd.
    """

    def __init__(self, registry: OpRegistry | tefl.OpRegistry | None = None) -> None:
        theirs = registry.tefl if isinstance(registry, OpRegistry) else registry
        self.tefl = tefl.OpManager(theirs)
        """The manager behind."""

    @classmethod
    def over(cls, manager: tefl.OpManager) -> OpManager:
        """The same door before a manager that there is already."""
        door = cls.__new__(cls)
        door.tefl = manager
        return door

    @property
    def registry(self) -> OpRegistry:
        """The manager's registry in TE-FL's form."""
        return OpRegistry(self.tefl.registry)

    def ensure_initialized(self) -> None:
        """Register the built-in implementations and the plugins, once."""
        self.tefl.ensure_ready()

    def call(self, op_name: str, *args: Any, **kwargs: Any) -> Any:
        """Run an op. NotImplementedError names an argument that cannot be mapped, such as a quantizer."""
        mapping = convention_of(op_name)
        if mapping is None:
            return self.tefl.call(op_name, *args, **kwargs)
        convention, _ = mapping
        mapped = convention.to_ours(op_name, args, kwargs)
        if mapped.unmappable:
            return self._by_plugin(op_name, mapped, args, kwargs)
        door = Door(op_name, args, kwargs)
        token = open_door.set(door)
        try:
            result = self.tefl.call(op_name, **mapped.arguments)
        finally:
            open_door.reset(token)
        if door.answer is not None and _same_form(door.answer[1], result):
            return door.answer[0]
        return convention.answer(op_name, result, mapped.out)

    def _by_plugin(self, op_name: str, mapped: Mapped, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that only a plugin understands: the first that fits runs, and nothing stands in for it."""
        decision = self.tefl.explain(op_name, **mapped.arguments)
        for candidate in decision.candidates:
            if candidate.accepted and isinstance(candidate.impl.fn, PluginFunction):
                try:
                    with torch.no_grad():
                        answer = candidate.impl.fn.impl.fn(*args, **kwargs)
                except Exception as error:
                    name_implementation(error, op_name, candidate.impl_id)
                    raise
                recording.count(op_name, candidate.impl_id, decision.facts.device_type, None)
                return answer
        nobody = "no plugin fits this call and tefl's own implementations take"
        raise refusal(op_name, mapped.unmappable, nobody)

    def resolve(self, op_name: str) -> Callable[..., Any]:
        """The function that would run for the CPU and any dtype, in Transformer Engine's convention."""
        return shown(self.tefl.resolve(op_name)).fn

    def get_selected_impl_id(self, op_name: str) -> str:
        """The impl_id of what `resolve` gives."""
        return self.tefl.resolve(op_name).impl_id


def _same_form(answer: Any, result: Any) -> bool:
    """Whether a plugin's results are what was made the op's: had they been of another form than the op
    promises, another implementation would have run in their place."""
    ours, theirs = ([*v] if isinstance(v, (tuple, list)) else [v] for v in (result, answer))
    return len(ours) == len(theirs) and all(
        not isinstance(one, torch.Tensor)
        or (isinstance(other, torch.Tensor) and _sizes(one) == _sizes(other))
        for one, other in zip(ours, theirs, strict=True)
    )


def _sizes(tensor: torch.Tensor) -> list[int]:
    """The shape but for dimensions of one, which dispatch lets differ."""
    return [size for size in tensor.shape if size != 1]


_default: OpManager | None = None


def get_default_manager() -> OpManager:
    """The manager behind ``torch.ops.tefl``, until `reset_default_manager` was called."""
    global _default
    if _default is None:
        _default = OpManager.over(tefl.get_manager())
    return _default


def reset_default_manager() -> None:
    """Start a manager that finds built-ins and plugins anew; ``torch.ops.tefl`` keeps its own."""
    global _default
    _default = OpManager()
