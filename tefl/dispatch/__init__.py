"""Choosing, per call, the implementation that computes an op."""

from . import native
from .decision import Candidate, Decision
from .discovery import PluginError, PluginState, set_plugin_imports
from .facts import active_provider, set_active_provider
from .manager import OpManager, explain, get_manager, get_registry, route, set_builtins
from .policy import (
    SelectionPolicy,
    checkpoint_contexts,
    policy_context,
    reset_global_policy,
    set_global_policy,
    with_allowed_vendors,
    with_denied_vendors,
    with_preference,
    with_strict_mode,
)
from .recording import record
from .registry import OpRegistry
from .schema import declarations, declare
from .types import (
    BackendImplKind,
    Backward,
    Deviation,
    DispatchError,
    Facts,
    Feed,
    NotSupported,
    OpDecl,
    OpImpl,
    Slower,
    UndeclaredWrite,
    of_form,
)

__all__ = [
    "BackendImplKind",
    "Backward",
    "Candidate",
    "Decision",
    "Deviation",
    "DispatchError",
    "Facts",
    "Feed",
    "NotSupported",
    "OpDecl",
    "OpImpl",
    "OpManager",
    "OpRegistry",
    "PluginError",
    "PluginState",
    "SelectionPolicy",
    "Slower",
    "UndeclaredWrite",
    "active_provider",
    "checkpoint_contexts",
    "declarations",
    "declare",
    "explain",
    "get_manager",
    "get_registry",
    "native",
    "of_form",
    "policy_context",
    "record",
    "reset_global_policy",
    "route",
    "set_active_provider",
    "set_builtins",
    "set_global_policy",
    "set_plugin_imports",
    "with_allowed_vendors",
    "with_denied_vendors",
    "with_preference",
    "with_strict_mode",
]
