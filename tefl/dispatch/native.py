"""Routing and differentiating declared ops in native code, where the compiled part is there."""

from __future__ import annotations

from types import ModuleType

from . import policy, recording, shared
from .gradients import Formula
from .lock import LOCK, epoch
from .manager import route
from .schema import schema_of
from .types import OpDecl

__all__ = ["attach", "install", "is_attached"]


def attach(module: ModuleType) -> None:
    """Have ``tefl._C.dispatch`` route the ops that are registered from now on."""
    with LOCK:
        module.set_context_variable(policy.FRAME)
        module.set_epoch(epoch.now)
        module.set_open_contexts(policy.open_contexts)
        module.set_recording(bool(recording.active))
        shared.native = module


def is_attached() -> bool:
    """Whether ops are routed in native code."""
    return shared.native is not None


def install(decl: OpDecl) -> None:
    """Register the native kernels of a declared op for the backend keys and for Autograd. Torch must have its
    schema already.
    """
    native, call = shared.native, route(decl.name)
    if native is None:
        raise RuntimeError(f"op {decl.name!r} cannot be routed in native code: nothing is attached")
    call.router = native.route(decl.name, call.serve, call.recover, call.wrote)
    native.differentiate(decl.name, _plain(schema_of(decl.name).formula))


def _plain(formula: Formula | None) -> tuple[object, ...] | None:
    if formula is None:
        return None
    return formula.op, list(formula.args), list(formula.grads), list(formula.differentiable)
