"""Finding plugins and letting each add its implementations, in isolation.

A plugin is a callable, or a module with ``te_fl_register`` or ``register``, that takes the registry.
Installed ones are found by the entry point group ``te_fl.plugin``, others are named in TE_FL_PLUGIN_MODULES.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .. import _env
from .._errors import one_line
from .functions import deferred
from .registry import OpRegistry

__all__ = ["PluginError", "PluginState", "load_plugins", "set_plugin_imports"]

GROUP = "te_fl.plugin"
VARIABLE = "TE_FL_PLUGIN_MODULES"


class PluginError(RuntimeError):
    """A plugin that the environment names cannot be loaded, or an object that is no plugin."""


@dataclass(frozen=True)
class PluginState:
    """What became of one plugin that was found."""

    name: str
    source: str
    """``te_fl.plugin`` (an entry point) or ``TE_FL_PLUGIN_MODULES``."""
    state: str
    """"loaded", "failed", or "found before" where another source had loaded it already."""
    impl_ids: tuple[str, ...] = ()
    error: BaseException | None = None

    @property
    def traceback(self) -> str | None:
        """The traceback of a failure as text."""
        return "".join(traceback.format_exception(self.error)) if self.error else None

    @property
    def is_fatal(self) -> bool:
        """Whether the user asked for this plugin by name and does not get it."""
        return self.error is not None and self.source == VARIABLE

    def explain_failure(self) -> str:
        """Why it was not loaded, in one line."""
        reason = one_line(self.error) if self.error else self.state
        return f"plugin {self.name!r} ({self.source}) was not loaded: {reason}"


Presented = Callable[[OpRegistry], Any]
"""What a plugin's function is given for a registry."""

_plugin_imports: Callable[[], contextlib.AbstractContextManager[Presented]] | None = None


def set_plugin_imports(supply: Callable[[], contextlib.AbstractContextManager[Presented]]) -> None:
    """Say which context gives plugins the packages that they import and that are not installed."""
    global _plugin_imports
    _plugin_imports = supply


def load_plugins(registry: OpRegistry) -> tuple[PluginState, ...]:
    """Load every plugin once, however often it is found. One that raises leaves nothing registered."""
    loaded: list[Callable[..., Any]] = []
    with contextlib.nullcontext(_as_it_is) if _plugin_imports is None else _plugin_imports() as presented:
        return tuple(_load(registry, presented, loaded, *found) for found in _found())


def _as_it_is(registry: OpRegistry) -> Any:
    return registry


def _found() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(name, source, function that imports it), entry points first."""
    from importlib.metadata import entry_points  # 20 ms, only needed once something runs

    installed = {(entry.name, entry.value): entry for entry in entry_points(group=GROUP)}
    for entry in installed.values():
        yield entry.name, GROUP, entry.load
    for module in _env.get(VARIABLE):
        yield module, VARIABLE, functools.partial(importlib.import_module, module)


def _load(
    registry: OpRegistry,
    presented: Presented,
    loaded: list[Callable[..., Any]],
    name: str,
    source: str,
    find: Callable[[], Any],
) -> PluginState:
    before = set(registry.implementation_keys())
    try:
        register = _registering_function(find())
        if (kind := deferred(register)) is not None:
            raise PluginError(f"{register!r} is {kind}, which registers nothing when called")
        if register in loaded:
            return PluginState(name, source, "found before")
        with registry.transaction():
            register(presented(registry))
    # SystemExit too: a plugin that calls sys.exit while it is imported must not end the program.
    except (Exception, SystemExit) as error:  # noqa: BLE001 - kept in the state and reported by the caller
        return PluginState(name, source, "failed", error=error)
    loaded.append(register)
    added = {impl_id for op, impl_id in registry.implementation_keys() if (op, impl_id) not in before}
    return PluginState(name, source, "loaded", tuple(sorted(added)))


def _registering_function(plugin: Any) -> Callable[..., Any]:
    if not isinstance(plugin, ModuleType):
        if not callable(plugin):
            raise PluginError(f"a plugin must be a callable or a module, got {plugin!r}")
        return plugin  # type: ignore[no-any-return]
    for name in ("te_fl_register", "register"):
        if callable(function := getattr(plugin, name, None)):
            return function  # type: ignore[no-any-return]
    raise PluginError(
        f"module {plugin.__name__!r} has neither te_fl_register(registry) nor register(registry)"
    )
