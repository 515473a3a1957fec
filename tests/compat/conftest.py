"""TE-FL's names in this process, a plugin's module, and managers of the test's own."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tefl
from tefl.compat.transformer_engine import install
from tefl.compat.transformer_engine._finder import MODULES


@pytest.fixture
def core() -> Iterator[Any]:
    """``transformer_engine.plugin.core``, taken away again after the test."""
    from tefl.compat.transformer_engine._finder import FINDER

    install()
    import transformer_engine.plugin.core as core

    yield core
    sys.meta_path.remove(FINDER)
    FINDER.supplied = FINDER.kept = False
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def manager(core: Any) -> Any:
    """TE-FL's manager over a registry of its own with the built-ins in it."""
    manager = core.OpManager(core.OpRegistry())
    manager.ensure_initialized()
    return manager


@pytest.fixture
def add(core: Any, manager: Any) -> Callable[..., Any]:
    """Register a plugin's function in the fixture ``manager``; vendor plugin, before all others."""

    def add(op_name: str, fn: Callable[..., Any], **fields: Any) -> Any:
        impl = core.OpImpl(
            op_name, "vendor.plugin", core.BackendImplKind.VENDOR, fn, vendor="plugin", priority=200, **fields
        )
        manager.registry.register_impl(impl)
        return impl

    return add


@pytest.fixture(autouse=True)
def _policy() -> Iterator[None]:
    tefl.reset_global_policy()
    yield
    tefl.reset_global_policy()


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a module into a folder for the import path; returns the folder."""

    def plugin(name: str, code: str) -> Path:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        return tmp_path

    return plugin
