"""PyTorch's module samples (ModuleInfo): results, gradients and state after one forward and backward."""

from __future__ import annotations

import functools
from typing import Any

import torch
from opinfo_compare import SEED, OpResult, compare, count, gradients, message, some_of, tensors_in, twins_of

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Modules:
    """`module_db`, by the modules' names, each in training and in evaluation where the two differ."""

    def names(self, dtype: torch.dtype) -> list[str]:
        """Return every module that has samples of `dtype`."""
        return [name for name, info in _by_name().items() if dtype in info.supported_dtypes("cpu")]

    def check(self, name: str, device: str, dtype: torch.dtype, fraction: float) -> OpResult:
        """Run a module's samples. Not being able to make them on the device is one failure."""
        info, result = _by_name()[name], OpResult(name)
        try:
            samples = samples_of(info, device, dtype)
        except Exception as error:  # noqa: BLE001
            count(result, f"making samples: {message(error)}", dtype)
            return result
        for sample, training in some_of(samples, fraction, name):
            count(result, check_sample(info.module_cls, sample, training, device, dtype), dtype)
        return result


@functools.cache
def _by_name() -> dict[str, Any]:
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def samples_of(info: Any, device: str, dtype: torch.dtype) -> list[tuple[Any, bool]]:
    """Return a module's samples, each with whether it is to train."""
    torch.manual_seed(SEED)
    modes = (True, False) if info.train_and_eval_differ else (True,)
    return [
        (sample, training)
        for training in modes
        for sample in info.module_inputs_func(
            info, device=device, dtype=dtype, requires_grad=True, training=training
        )
        if sample.forward_input is not None
    ]


def run_module(
    kind: type[torch.nn.Module], make: Call, call: Call, training: bool, device: str, dtype: torch.dtype
) -> tuple[Any, list[torch.Tensor | None], dict[str, Any]]:
    """Return a fresh module's result, the gradients of inputs and parameters, and its state afterwards."""
    torch.manual_seed(SEED)
    module = kind(*make[0], **make[1]).to(device=device, dtype=dtype).train(training)
    torch.manual_seed(SEED)
    result = module(*call[0], **call[1])
    inputs = [*tensors_in(call), *module.parameters()]
    return result, gradients(result, inputs), module.state_dict()


def check_sample(
    kind: type[torch.nn.Module], sample: Any, training: bool, device: str, dtype: torch.dtype
) -> str | None:
    """Return None if the sample passes, "skipped" if the CPU fails too, else what went wrong."""
    calls = [(part.args, part.kwargs) for part in (sample.constructor_input, sample.forward_input)]
    on_device, on_cpu = twins_of(calls, device)
    try:
        wanted = run_module(kind, *on_cpu, training, "cpu", dtype)
    except Exception:  # noqa: BLE001
        return "skipped"  # whatever it is, it is not the device's
    try:
        compare(run_module(kind, *on_device, training, device, dtype), wanted, device)
    except Exception as error:  # noqa: BLE001 - a module may fail in any way
        return message(error)
    return None
