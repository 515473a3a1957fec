"""What Triton implements, and where it runs. Imports neither triton nor the kernels."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from tefl import _env
from tefl._lazy import Lazy
from tefl.dispatch.types import BackendImplKind, Facts, OpImpl
from tefl.kernels._families import FAMILIES

__all__ = ["implementations", "interpreting", "provenance", "unavailable"]

_BACKEND = "TEFL_KERNEL_BACKEND"

_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})
_OLDEST = (8, 0)


def implementations() -> Iterable[OpImpl]:
    """One ``default.flagos`` an op; nothing is imported until one runs.

    `SpecError` where TEFL_KERNEL_BACKEND names a backend of the kernels that is not installed.
    """
    if _env.is_set(_BACKEND):
        _spec().demand_installed()
    for family, names in FAMILIES.items():
        for name in names:
            yield OpImpl(
                op_name=name,
                impl_id="default.flagos",
                kind=BackendImplKind.DEFAULT,
                fn=Lazy(f"{__package__}.ops.{family}", name, provenance),
                priority=150,
                supported_dtypes=_DTYPES,
                is_available=unavailable,
            )


def provenance() -> str | None:
    """Which backend's specialisations the kernels run, in words; None where they are trunk's alone."""
    return str(said) if (said := _spec().describe()) else None


def interpreting() -> bool:
    """Whether Triton runs its kernels on the host: TRITON_INTERPRET, read as Triton itself reads it."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def unavailable(facts: Facts) -> str | None:
    """Why Triton kernels cannot serve tensors such as these; None where they can."""
    if find_spec("triton") is None:
        return "Triton is not installed; pip install tefl[triton]"
    if _env.is_set(_BACKEND):
        _spec().warn_if_late()
    if facts.provider is not None and (late := _spec().late_for(facts.provider)):
        return str(late)
    runs_on = facts.computes_on
    if interpreting():
        return (
            None
            if runs_on in ("cpu", "cuda")
            else f"TRITON_INTERPRET=1 cannot reach the memory of {_place(facts)}"
        )
    if runs_on == "cpu":
        return "Triton has no CPU backend; TRITON_INTERPRET=1 runs it slowly for tests"
    if runs_on != "cuda":
        return f"Triton compiles for NVIDIA GPUs, not for {_place(facts)}"
    if torch.version.hip is not None:
        return "this PyTorch is built for ROCm; the kernels are launched through the CUDA driver"
    if facts.arch is not None and facts.arch < _OLDEST:
        return f"needs compute capability {_dotted(_OLDEST)}, the device has {_dotted(facts.arch)}"
    return None


def _spec() -> Any:
    """What tells of specialisations; not imported where none is selected and no kernel runs."""
    return import_module("tefl.kernels.spec")


def _place(facts: Facts) -> str:
    if facts.device_type != "privateuse1":
        return f"a {facts.device_type} device"
    return f"the device of provider {facts.provider!r} (alias {facts.alias!r})"


def _dotted(arch: tuple[int, int]) -> str:
    return f"{arch[0]}.{arch[1]}"
