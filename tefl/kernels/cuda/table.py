"""What CUDA C++ implements, and where it runs. Loads no machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tefl import _env, _native
from tefl._errors import dtype_name
from tefl._lazy import Lazy
from tefl.dispatch.types import BackendImplKind, Facts, OpImpl, of_form
from tefl.kernels._families import FAMILIES

__all__ = ["implementations", "unavailable"]

_FATBINS = Path(__file__).with_name("fatbin")
_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})
_OLDEST = (8, 0)


def implementations() -> Iterable[OpImpl]:
    """One ``vendor.cuda`` an op; nothing is imported until one runs."""
    for name in FAMILIES["norm"]:
        forward = name.endswith("_fwd")  # the op's check has made sure of what is not asked here
        yield OpImpl(
            op_name=name,
            impl_id="vendor.cuda",
            kind=BackendImplKind.VENDOR,
            vendor="nvidia",
            fn=Lazy(f"{__package__}.norm", name),
            priority=100,
            supported_dtypes=_DTYPES,
            is_available=unavailable if forward else _GRADIENT,
            supports=_own_dtype_out if forward else None,
        )


def unavailable(facts: Facts) -> str | None:
    """Why the CUDA kernels cannot serve tensors such as these; None where they can."""
    if _env.get("TE_FL_SKIP_CUDA"):
        return "TE_FL_SKIP_CUDA=1"
    if facts.computes_on != "cuda":
        return f"runs on NVIDIA GPUs, not on {facts.device_name or facts.device_type}"
    if torch.version.hip is not None:
        return "this PyTorch is built for ROCm"
    if reason := _not_built():
        return reason
    if facts.arch is not None and facts.arch < _OLDEST:
        return f"needs compute capability 8.0, the device has {facts.arch[0]}.{facts.arch[1]}"
    return None


def _not_built() -> str | None:
    if (facts := _native.build_facts()) is None:
        return "tefl's compiled part was not built"
    if skipped := facts.get("cuda_skipped"):
        return f"tefl was built without CUDA kernels: {skipped}"
    return None if _FATBINS.is_dir() else f"the CUDA kernels are missing from {_FATBINS}; build tefl again"


def _one_dtype(*positions: int, names: str) -> Callable[[Facts], str | None]:
    """Available where the tensors at these positions have one dtype: no kernel is compiled for a mixture."""

    def is_available(facts: Facts) -> str | None:
        dtypes = [facts.dtypes[i] for i in positions if i < len(facts.dtypes)]
        if len(set(dtypes)) > 1:
            return f"compiled for one dtype of {names}, got {' and '.join(map(dtype_name, dtypes))}"
        return unavailable(facts)

    return is_available


@of_form
def _own_dtype_out(input: Tensor, *_: Any, out_dtype: torch.dtype | None, **__: Any) -> str | None:
    if out_dtype is None or out_dtype is input.dtype:
        return None
    return (
        f"writes out in the dtype of input, {dtype_name(input.dtype)}; out_dtype is {dtype_name(out_dtype)}"
    )


_GRADIENT = _one_dtype(0, 1, names="grad and input")
