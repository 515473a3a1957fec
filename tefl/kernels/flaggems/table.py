"""What FlagGems implements, and where it runs. Imports nothing of it: that needs a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from tefl._errors import dtype_name
from tefl._lazy import Lazy
from tefl.dispatch.types import BackendImplKind, Facts, OpImpl, of_form

__all__ = ["implementations", "unavailable"]

_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})


def implementations() -> Iterable[OpImpl]:
    """One ``default.flaggems`` an op that FlagGems has; nothing is imported until one runs."""
    for name in ("layernorm_fwd", "layernorm_bwd", "rmsnorm_fwd", "rmsnorm_bwd"):
        yield OpImpl(
            op_name=name,
            impl_id="default.flaggems",
            kind=BackendImplKind.DEFAULT,
            fn=Lazy(f"{__package__}.norm", name),
            priority=120,
            supported_dtypes=_DTYPES,
            devices=("cuda",),
            is_available=_AVAILABLE.get(name, unavailable),
            supports=_forward_fits if name.endswith("fwd") else _backward_fits,
        )


def unavailable(facts: Facts) -> str | None:
    """Why FlagGems cannot serve tensors such as these; None where it can."""
    if find_spec("flag_gems") is None:
        return "flag_gems is not installed; pip install tefl[flaggems]"
    return None


def _float32_only(facts: Facts) -> str | None:
    if facts.dtypes and facts.dtypes[0] is not torch.float32:
        return f"FlagGems keeps LayerNorm's statistics in {dtype_name(facts.dtypes[0])}; float32 is promised"
    return unavailable(facts)


def _weight_as_wide_as_input(facts: Facts) -> str | None:
    if len(facts.dtypes) == 4 and facts.dtypes[3] is torch.float32 is not facts.dtypes[1]:
        return f"FlagGems rounds dweight to {dtype_name(facts.dtypes[1])}; the weight is float32"
    return unavailable(facts)


_AVAILABLE = {"layernorm_fwd": _float32_only, "rmsnorm_bwd": _weight_as_wide_as_input}


@of_form
def _forward_fits(input: Tensor, *_: Any, out_dtype: torch.dtype | None, **__: Any) -> str | None:
    if out_dtype not in (None, input.dtype):
        has, wanted = dtype_name(input.dtype), dtype_name(out_dtype)
        return f"FlagGems writes out in the dtype of input, {has}; out_dtype is {wanted}"
    return _has_rows(input)


@of_form
def _backward_fits(grad: Tensor, input: Tensor, *_: Any, **__: Any) -> str | None:
    return _has_rows(input)


def _has_rows(input: Tensor) -> str | None:
    return None if input.numel() else "FlagGems launches an empty grid where input has no rows"
