"""TE-FL's names for how plugins are found."""

from __future__ import annotations

from typing import Any

from tefl.dispatch import PluginState
from tefl.dispatch.discovery import GROUP, VARIABLE, load_plugins

from .registry import OpRegistry

__all__ = ["PLUGIN_GROUP", "PLUGIN_MODULES_ENV", "discover_plugin", "discover_plugins"]

PLUGIN_GROUP = GROUP
PLUGIN_MODULES_ENV = VARIABLE


def discover_plugins(registry: Any) -> tuple[PluginState, ...]:
    """Load every plugin into a registry; tells what became of each."""
    return load_plugins(registry.tefl if isinstance(registry, OpRegistry) else registry)


discover_plugin = discover_plugins
