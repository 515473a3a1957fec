"""Which modules stand under TE-FL's names, and the import finder that supplies them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from tefl._log import logger

__all__ = ["FINDER", "MODULES"]

_CORE = ("types", "ops", "registry", "manager", "policy", "discovery")
MODULES: Final = {
    "transformer_engine": (),
    "transformer_engine.plugin": (),
    "transformer_engine.plugin.core": _CORE,
    **{f"transformer_engine.plugin.core.{name}": (name,) for name in _CORE},
    "transformer_engine.plugin.core.logger_manager": ("logger_manager",),
    "transformer_engine.plugin.test_utils": ("test_utils",),
}
"""TE-FL's module -> modules of this package whose public names it has."""


class _Finder(MetaPathFinder, Loader):
    """Stands last among the import finders: whatever is really installed is found before."""

    def __init__(self) -> None:
        self.supplied = False
        """Whether anybody has imported one of the modules."""
        self.users = 0
        """How many are loading plugins."""
        self.kept = False
        """Whether it stays when plugins have been loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in MODULES)
        return ModuleSpec(fullname, self, origin="supplied by tefl", is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__doc__ = "Supplied by tefl.compat.transformer_engine: names of TE-FL over tefl's own."
        exported: list[str] = []
        for part in MODULES[name]:
            ours = importlib.import_module(f"{__package__}.{part}")
            vars(module).update({public: getattr(ours, public) for public in ours.__all__})
            exported += ours.__all__
        vars(module).update(__all__=exported, __getattr__=lambda missing: _missing(name, missing))
        if not self.supplied:
            self.supplied = self.kept = True
            logger().info(
                "transformer_engine.plugin is not installed: supplied by tefl, asked for by a plugin"
            )


def _missing(module: str, name: str) -> Any:
    if f"{module}.{name}" in MODULES:  # as an attribute too, as the real package has its modules
        return importlib.import_module(f"{module}.{name}")
    raise AttributeError(f"{module}, as tefl supplies it, has no {name!r}")


FINDER: Final = _Finder()
