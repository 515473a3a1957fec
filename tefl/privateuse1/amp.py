"""The module torch.<name>.amp: torch.amp's names with the device filled in, as torch.cuda.amp has them."""

from __future__ import annotations

import functools
from types import ModuleType

import torch

from tefl import _native

__all__ = ["build"]


def build(name: str) -> ModuleType:
    """Make the module for the claimed device `name`."""

    class autocast(torch.amp.autocast_mode.autocast):
        """A `torch.autocast` of the device; `dtype` is the provider's choice unless given."""

        def __init__(
            self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True
        ) -> None:
            super().__init__(name, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    class GradScaler(torch.amp.GradScaler):
        """A `torch.amp.GradScaler` of the device; see there for the arguments."""

        def __init__(
            self,
            init_scale: float = 2.0**16,
            growth_factor: float = 2.0,
            backoff_factor: float = 0.5,
            growth_interval: int = 2000,
            enabled: bool = True,
        ) -> None:
            super().__init__(name, init_scale, growth_factor, backoff_factor, growth_interval, enabled)

    def amp_definitely_not_available() -> bool:
        """Return whether there is no device to compute on."""
        return bool(_native.load().device_count() == 0)

    module = ModuleType(f"torch.{name}.amp", f"Mixed precision on {name!r}.")
    contents = {
        "autocast": autocast,
        "GradScaler": GradScaler,
        "amp_definitely_not_available": amp_definitely_not_available,
        "custom_fwd": functools.partial(torch.amp.custom_fwd, device_type=name),
        "custom_bwd": functools.partial(torch.amp.custom_bwd, device_type=name),
    }
    module.__dict__.update(contents, __all__=list(contents))
    return module
