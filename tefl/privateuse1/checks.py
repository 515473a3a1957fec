"""What can be wrong with a provider, and how it is told: every defect at once, each with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch

AUTOCAST_DTYPES: Final = (torch.float16, torch.bfloat16)

#: Kernels without which no tensor can be made, moved or differentiated: purpose -> ATen operator.
MANDATORY_KERNELS: Final = {
    "cast": "aten::_copy_from",
    "fill": "aten::fill_.Scalar",
    "no-op forward (a view that shares storage)": "aten::view",
    "no-op backward (what the gradient of a view calls)": "aten::_reshape_alias",
}


class Defect(NamedTuple):
    """One thing that is wrong, and what its vendor or user can do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} -> {self.remedy}"


class BackendError(RuntimeError):
    """A device could not be registered. `defects` lists everything that is wrong with it."""

    def __init__(self, subject: str, defects: Sequence[Defect]) -> None:
        self.subject = subject
        self.defects: tuple[Defect, ...] = tuple(defects)
        lines = [f"{subject}:", *(f"  - {defect}" for defect in self.defects)]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[BackendError], tuple[str, tuple[Defect, ...]]]:
        return type(self), (self.subject, self.defects)


def declaration_defects(
    autocast_dtype: object, register_kernels: object, register_ccl: object
) -> list[Defect]:
    """Judge what a backend declares besides its name and library."""
    defects = []
    if autocast_dtype is not None and autocast_dtype not in AUTOCAST_DTYPES:
        what = f"default_autocast_dtype is {autocast_dtype!r}"
        defects.append(Defect(what, "use torch.float16, torch.bfloat16, or None to have users name one"))
    for name, value in (("register_kernels", register_kernels), ("register_ccl", register_ccl)):
        if value is not None and not callable(value):
            what = f"{name} is {value!r}, which cannot be called"
            defects.append(Defect(what, "pass a function without arguments, or None"))
    return defects


def kernel_defects(alias: str, has_kernel: Callable[[str], bool]) -> list[Defect]:
    """Return the mandatory kernels that are missing. `has_kernel(op)` looks into the dispatcher.

    With alias "cpu" or "cuda" the alias kernel provides all of them, so nothing can be missing.
    """
    if alias in ("cpu", "cuda"):
        return []
    return [
        Defect(
            f"the mandatory kernel for {purpose}, {op}, is not registered for PrivateUse1",
            "register it in register_kernels, or declare an alias device in tefl_provider.alias",
        )
        for purpose, op in MANDATORY_KERNELS.items()
        if not has_kernel(op)
    ]
