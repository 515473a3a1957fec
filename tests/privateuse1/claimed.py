"""The device that tests use: `maca`, of the provider that the run was asked for (``pytest --provider``).

Used in the process that runs the tests and in those that they start, to which the choice goes by
TEST_PROVIDER. Numbers are compared with those of the device whose kernels compute on the provider's memory.
"""

from __future__ import annotations

import os

import torch

PROVIDER = os.environ.get("TEST_PROVIDER", "sim")
ALIAS = {"sim": "cpu", "cuda": "cuda"}[PROVIDER]
AUTOCAST = {"sim": torch.bfloat16, "cuda": torch.float16}[PROVIDER]


def claim(default_autocast_dtype: torch.dtype | None = AUTOCAST) -> None:
    """Register `maca`, unless this process has it."""
    from tefl.privateuse1 import PrivateUse1Backend, is_registered, register_backend

    if not is_registered():
        backend = PrivateUse1Backend("maca", PROVIDER, default_autocast_dtype=default_autocast_dtype)
        register_backend(backend)


def alias(device: str | torch.device = "maca") -> torch.device:
    """Return the alias device of `device`, any other device as it is: maca:1 is cuda:1, or cpu."""
    device = torch.device(device)
    if device.type != "maca":
        return device
    return torch.device(ALIAS) if ALIAS == "cpu" else torch.device(ALIAS, device.index or 0)
