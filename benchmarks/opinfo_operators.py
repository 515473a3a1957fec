"""PyTorch's operator samples (OpInfo), forward and backward."""

from __future__ import annotations

import functools
from typing import Any

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
from opinfo_reference import Reference, alias_of_provider

#: Their results are whatever the memory held: only shape, dtype and device can be compared.
UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)


class Operators:
    """`op_db`: each OpInfo by its name and variant."""

    def names(self, dtype: torch.dtype) -> list[str]:
        """Return every OpInfo that has samples of `dtype`."""
        return [full_name(op) for op in _op_db() if dtype in op.supported_dtypes(alias_of_provider())]

    def check(self, name: str, device: str, dtype: torch.dtype, fraction: float) -> OpResult:
        """Run an operator's samples. Not being able to make them on the device is one failure."""
        op, result, alias = by_name()[name], OpResult(name), alias_of_provider()
        wanted = None if alias == "cpu" else _reference(dtype, fraction).results(name)
        if alias != "cpu" and wanted is None:
            return result  # the alias cannot make them either
        try:
            samples = samples_of(op, device, dtype, fraction, alias)
            if wanted is not None and len(wanted) != len(samples):
                raise RuntimeError(f"{len(samples)} samples, {len(wanted)} on the alias")
        except Exception as error:  # noqa: BLE001
            count(result, f"making samples: {message(error)}", dtype)
            return result
        for number, sample in enumerate(samples):
            count(
                result, check_sample(op, sample, device, *([] if wanted is None else [wanted[number]])), dtype
            )
        return result


@functools.cache
def _reference(dtype: torch.dtype, fraction: float) -> Reference:
    return Reference(dtype, fraction)


def _op_db() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


@functools.cache
def by_name() -> dict[str, Any]:
    return {full_name(op): op for op in _op_db()}


def full_name(op: Any) -> str:
    """Return an OpInfo's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def samples_of(op: Any, device: str, dtype: torch.dtype, fraction: float, alias: str = "cpu") -> list[Any]:
    """Return an operator's samples on `device`, or a repeatable fraction of them."""
    torch.manual_seed(SEED)
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


class _Twin:
    """Stands for what the alias gives where the CPU's twins of the arguments are to tell."""


def check_sample(op: Any, sample: Any, device: str, wanted: Any = _Twin) -> str | None:
    """Return None if the sample passes, "skipped" if the alias fails too, else what went wrong.

    `wanted` is what the alias gives, None where it fails; unless given, the CPU is asked.
    """
    arguments, twins = twins_of((sample.input, sample.args, sample.kwargs), device)
    wanted = outcome(op, twins) if wanted is _Twin else wanted
    if wanted is None:
        return "skipped"
    try:
        compare(run_sample(op, arguments), wanted, result_device(sample), op.name in UNINITIALISED)
    except Exception as error:  # noqa: BLE001 - an operator may fail in any way
        return message(error)
    return None


def outcome(op: Any, arguments: Any) -> Any:
    """Return what the alias gives; None if it fails."""
    try:
        return run_sample(op, arguments)
    except Exception:  # noqa: BLE001
        return None  # whatever it is, it is not the device's
