"""What PyTorch chooses by the device's name, made the same choice on both sides before they are compared.

Two algorithms for one thing round differently, and neither is wrong. So that a comparison shows what the
device computes, and not which algorithm was taken, the CPU is given the one that PyTorch takes on the device.
No tolerance is widened for it: the same algorithm has to give the same numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch


def as_chosen_on(device: str, options: Any) -> Any:
    """Return what torch makes of `options` of a linear cross entropy on `device`, said outright.

    Where they leave it to torch ("auto"), accumulation and chunks go by a table of device names
    (torch/nn/modules/linear_cross_entropy_options.py: _AUTO_DEFAULTS, and _resolve_auto_acc_dtype, which asks
    for "cuda" and "cpu" and has no way to enter another). Other values are returned as they are.
    """
    kind = getattr(torch.nn, "LinearCrossEntropyOptions", None)
    if kind is None or not isinstance(options, kind) or options.acc_policy != "auto":
        return options
    # That no pair is listed for the device is the same for every dtype: bfloat16 stands for all.
    chosen = options._adjust(
        num_batches=1, in_features=1, num_classes=1, dtype=torch.bfloat16, device=torch.device(device)
    )
    left_open = options.chunking_method == "auto" and options.batch_chunk_size is None
    chunking = chosen.chunking_method if left_open else options.chunking_method
    return dataclasses.replace(options, acc_policy=chosen.acc_policy, chunking_method=chunking)


@contextlib.contextmanager
def capturable_on_cpu() -> Iterator[None]:
    """Let optimizers take their capturable path on the CPU, which torch keeps for accelerators.

    That path is Python that any device can run. Torch refuses it by the device's name, which
    `_get_capturable_supported_devices` lists for each of the modules.
    """
    name = "_get_capturable_supported_devices"
    with contextlib.ExitStack() as patches:
        for module in [value for key, value in sys.modules.items() if key.startswith("torch.optim.")]:
            if hasattr(module, name):
                patches.enter_context(mock.patch.object(module, name, return_value=["cpu"]))
        yield
