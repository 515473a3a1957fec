"""PyTorch's optimizer samples (OptimizerInfo): parameters and state after some steps."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from opinfo_choices import capturable_on_cpu
from opinfo_compare import SEED, OpResult, compare, count, gradients, message, some_of, tensors_in

STEPS = 4
Kwargs = dict[str, Any]


class Optimizers:
    """`optim_db`, by class name: each configuration as it is, plain, foreach, fused and differentiable."""

    def names(self, dtype: torch.dtype) -> list[str]:
        """Return every optimizer that takes parameters of `dtype`."""
        return [name for name, info in _by_name().items() if info.supports_complex or not dtype.is_complex]

    def check(self, name: str, device: str, dtype: torch.dtype, fraction: float) -> OpResult:
        """Run an optimizer's configurations, or a repeatable fraction of them."""
        info, result = _by_name()[name], OpResult(name)
        for kwargs in some_of(configurations(info, dtype), fraction, name):
            error = check_configuration(info, kwargs, device, dtype)
            count(result, error and (error if error == "skipped" else f"{describe(kwargs)}: {error}"), dtype)
        return result


@functools.cache
def _by_name() -> dict[str, Any]:
    from torch.testing._internal.common_optimizers import optim_db

    return {info.name: info for info in optim_db}


def configurations(info: Any, dtype: torch.dtype) -> list[Kwargs]:
    """Return the keyword arguments to try: all that PyTorch tries on CUDA, and each without a choice made."""
    from torch.testing._internal.common_optimizers import _get_optim_inputs_including_global_cliquey_kwargs

    chosen = _get_optim_inputs_including_global_cliquey_kwargs("cuda", dtype, info)
    return [each.kwargs for each in (*info.optim_inputs_func("cuda", dtype), *chosen)]


def describe(kwargs: Kwargs) -> str:
    """Return a configuration in one line, without the choices that are off."""
    return ", ".join(f"{name}={value}" for name, value in kwargs.items() if value is not False) or "default"


def for_cpu(info: Any, kwargs: Kwargs) -> Kwargs:
    """Return what computes the same on the CPU: where no choice is made, an accelerator takes foreach."""
    if "foreach" in info.supported_impls and not {"foreach", "fused", "differentiable"} & set(kwargs):
        return {**kwargs, "foreach": True}
    return kwargs


def leaves_of(info: Any, device: str, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    """Return the same parameters on any device: matrices, and a vector where the optimizer takes one."""
    generator = torch.Generator().manual_seed(SEED)
    shapes = [(4, 3), (4, 4)] if info.name == "Muon" else [(4, 3), (4, 4), (4,)]
    values = [torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes]
    return [torch.nn.Parameter(value.to(device)) for value in values]


def closure_of(parameters: list[torch.Tensor], sparse: bool) -> Callable[[], torch.Tensor]:
    """Return the closure of a small regression, whose gradients are sparse where that is all there may be."""

    def closure() -> torch.Tensor:
        scales = [torch.arange(1, p.numel() + 1, device=p.device).reshape(p.shape) for p in parameters]
        with torch.enable_grad():
            errors = [(p * s / s.numel() - 1).abs() for p, s in zip(parameters, scales, strict=True)]
            loss = sum((e**2).sum() for e in errors)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient.to_sparse() if sparse else gradient
        return loss.detach()

    return closure


def train(info: Any, kwargs: Kwargs, device: str, dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    """Return losses, parameters, and the gradient through a step that is differentiable; and the state."""
    leaves: list[Any] = leaves_of(info, device, dtype)
    through = bool(kwargs.get("differentiable"))
    parameters = [leaf.clone() for leaf in leaves] if through else leaves
    optimizer = info.optim_cls(parameters, **copy.deepcopy(kwargs))
    closure = closure_of(parameters, info.only_supports_sparse_grads)
    seen = []
    for _ in range(1 if through else STEPS):
        if info.step_requires_closure:
            seen.append(optimizer.step(closure))
        else:
            seen.append(closure())
            optimizer.step()
    seen += [p.detach() for p in parameters]
    return [*seen, *(gradients(parameters, leaves) if through else [])], tensors_in(
        optimizer.state_dict()["state"]
    )


def compare_state(got: list[torch.Tensor], wanted: list[torch.Tensor], device: str) -> None:
    """Raise unless states are equal; counts of steps lie on the CPU, or on the device if that is chosen."""
    for got_tensor, wanted_tensor in zip(got, wanted, strict=True):
        on_cpu = wanted_tensor.dim() == 0 and got_tensor.device.type == "cpu"
        compare(got_tensor, wanted_tensor, "cpu" if on_cpu else device)


def check_configuration(info: Any, kwargs: Kwargs, device: str, dtype: torch.dtype) -> str | None:
    """Return None if the sample passes, "skipped" if the CPU fails too, else what went wrong."""
    try:
        with capturable_on_cpu():
            wanted = train(info, for_cpu(info, kwargs), "cpu", dtype)
    except Exception:  # noqa: BLE001
        return "skipped"  # whatever it is, it is not the device's
    try:
        got = train(info, kwargs, device, dtype)
        compare(got[0], wanted[0], device)
        compare_state(got[1], wanted[1], device)
    except Exception as error:  # noqa: BLE001 - an optimizer may fail in any way
        return message(error)
    return None
