"""Transformer ops with several implementations each, and PyTorch devices under a vendor's own name.

Importing this package registers ``torch.ops.tefl.*`` and initialises nothing: environment variables are read,
plugins loaded and compiled code imported when something first needs them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import _native

_native.check_torch(_native.build_facts(), torch.__version__)

from . import dispatch, kernels  # noqa: E402 - not before the check of the torch that runs

dispatch.set_builtins(kernels.register_builtins)
kernels.set_provider_name(dispatch.active_provider)
dispatch.set_plugin_imports(lambda: importlib.import_module("tefl.compat.transformer_engine").for_plugins())
if (_compiled := _native.load_if_built()) is not None:
    dispatch.native.attach(_compiled.dispatch)  # before the ops are registered

if TYPE_CHECKING:
    from . import distributed, privateuse1

    def ops() -> tuple[dispatch.OpDecl, ...]:
        """Every declared op: ``.name``, ``.family``, ``.schema``."""

else:
    from . import ops  # the declarations ask dispatch for their routers, and the package can be called

from ._errors import ConfigError, SpecError  # noqa: E402
from .dispatch import (  # noqa: E402
    BackendImplKind,
    Deviation,
    DispatchError,
    NotSupported,
    OpImpl,
    OpManager,
    OpRegistry,
    PluginError,
    SelectionPolicy,
    Slower,
    UndeclaredWrite,
    checkpoint_contexts,
    explain,
    get_manager,
    get_registry,
    of_form,
    policy_context,
    record,
    reset_global_policy,
    set_global_policy,
    with_allowed_vendors,
    with_denied_vendors,
    with_preference,
    with_strict_mode,
)

__version__ = "0.1.0"

__all__ = [
    "BackendImplKind",
    "ConfigError",
    "Deviation",
    "DispatchError",
    "NotSupported",
    "OpImpl",
    "OpManager",
    "OpRegistry",
    "PluginError",
    "SelectionPolicy",
    "Slower",
    "SpecError",
    "UndeclaredWrite",
    "checkpoint_contexts",
    "distributed",
    "explain",
    "get_cmake_dir",
    "get_include",
    "get_manager",
    "get_registry",
    "kernels",
    "of_form",
    "ops",
    "policy_context",
    "privateuse1",
    "record",
    "reset_global_policy",
    "set_global_policy",
    "with_allowed_vendors",
    "with_denied_vendors",
    "with_preference",
    "with_strict_mode",
]

_LAZY = ("compat", "distributed", "privateuse1")
_OTHERS = ("__version__", "compat", "dispatch")
"""What is public beside ``__all__``."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_OTHERS})


def get_include() -> str:
    """The folder that holds ``tefl_provider.h``, all that a provider compiles against."""
    return str(Path(__file__).parent / "include")


def get_cmake_dir() -> str:
    """The folder that holds ``teflConfig.cmake``, which gives CMake the target ``tefl::provider``."""
    return str(Path(__file__).parent / "cmake")
