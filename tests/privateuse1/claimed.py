"""The device that tests use: `maca`, of the provider that the run was asked for (``pytest --provider``).

Used in the process that runs the tests and in those that they start, to which the choice goes by
TEST_PROVIDER. Numbers are compared with those of the device whose kernels compute on the provider's memory.
"""

from __future__ import annotations

import os

import torch

PROVIDER = os.environ.get("TEST_PROVIDER", "sim")
ALIAS = {"sim": "cpu", "cuda": "cuda"}[PROVIDER]
DEVICES = 2 if PROVIDER == "sim" else torch.cuda.device_count()

#: A device other than the one that is current at first, where there are two; and its number.
INDEX = min(DEVICES, 2) - 1
OTHER = f"maca:{INDEX}"


def claim(default_autocast_dtype: torch.dtype | None = torch.bfloat16) -> None:
    """Register `maca`, unless this process has it."""
    from tefl.privateuse1 import PrivateUse1Backend, is_registered, register_backend

    if not is_registered():
        backend = PrivateUse1Backend("maca", PROVIDER, default_autocast_dtype=default_autocast_dtype)
        register_backend(backend)


def alias(device: str | torch.device = "maca") -> torch.device:
    """Return the device that computes for `device`: cpu, or CUDA's of that number; another as it is."""
    device = torch.device(device)
    if device.type != "maca":
        return device
    return torch.device(ALIAS) if ALIAS == "cpu" else torch.device(ALIAS, device.index or 0)
