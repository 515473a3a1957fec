"""PyTorch's operator samples (OpInfo), forward and backward."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import torch
from opinfo_compare import (
    SEED,
    OpResult,
    compare,
    count,
    gradients,
    message,
    some_of,
    tensors_in,
    twins_of,
)

#: Their results are whatever the memory held: only shape, dtype and device can be compared.
UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)


class Operators:
    """`op_db`: each OpInfo by its name and variant."""

    def names(self, dtype: torch.dtype) -> list[str]:
        """Return every OpInfo that has samples of `dtype`."""
        return [full_name(op) for op in _op_db() if dtype in op.supported_dtypes("cpu")]

    def check(self, name: str, device: str, dtype: torch.dtype, fraction: float) -> OpResult:
        """Run an operator's samples. Not being able to make them on the device is one failure."""
        op, result = _by_name()[name], OpResult(name)
        try:
            samples = samples_of(op, device, dtype, fraction)
        except Exception as error:  # noqa: BLE001
            count(result, f"making samples: {message(error)}", dtype)
            return result
        for sample in samples:
            count(result, check_sample(op, sample, device), dtype)
        return result


def _op_db() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


@functools.cache
def _by_name() -> dict[str, Any]:
    return {full_name(op): op for op in _op_db()}


def full_name(op: Any) -> str:
    """Return an OpInfo's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def samples_of(op: Any, device: str, dtype: torch.dtype, fraction: float, alias: str = "cpu") -> list[Any]:
    """Return an operator's samples on `device`, or a repeatable fraction of them."""
    torch.manual_seed(SEED)
    random.seed(SEED)  # some samples are shuffled
    np.random.seed(SEED)
    differentiable = dtype in op.supported_backward_dtypes(alias)
    return some_of(
        list(op.sample_inputs(device, dtype, requires_grad=differentiable)), fraction, full_name(op)
    )


def run_sample(op: Any, arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> tuple[Any, list[Any]]:
    """Return the operator's result and the gradients of every argument that wants one."""
    input, args, kwargs = arguments
    torch.manual_seed(SEED)
    result = op(input, *args, **kwargs)
    return result, gradients(result, tensors_in(arguments))


def result_device(sample: Any) -> str:
    """Return the type of the device that results belong on: the one the sample names, else its operands'."""
    if sample.kwargs.get("device") is not None:
        return torch.device(sample.kwargs["device"]).type
    operands = tensors_in((sample.input, sample.args, sample.kwargs))
    return next((t.device.type for t in operands if t.device.type != "cpu"), "cpu")


def check_sample(op: Any, sample: Any, device: str) -> str | None:
    """Return None if the sample passes, "skipped" if the CPU fails too, else what went wrong."""
    arguments, twins = twins_of((sample.input, sample.args, sample.kwargs), device)
    try:
        wanted = run_sample(op, twins)
    except Exception:  # noqa: BLE001
        return "skipped"  # whatever it is, it is not the device's
    try:
        compare(run_sample(op, arguments), wanted, result_device(sample), op.name in UNINITIALISED)
    except Exception as error:  # noqa: BLE001 - an operator may fail in any way
        return message(error)
    return None
