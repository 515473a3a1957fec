"""PyTorch's own samples that differ on the device from the CPU or plain CUDA: why, and where in torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Deviation(NamedTuple):
    """Expected failures: of the operator, module or optimizer `op`, with `error` in their message."""

    op: str
    error: str
    reason: str
    source: str  # an upstream issue, or the file of torch that makes it so
    dtypes: tuple[str, ...] = ()  # in which; in every one if empty
    sometimes: bool = False  # a run may be without


_COMPRESSED = (
    "the device has no tensors of compressed layouts: their kernels are registered per device, and it "
    "refuses them by name (docs/limits.md)"
)
_COMPRESSED_SOURCE = (
    "pytorch/pytorch#123826 lets PrivateUse1 make them; aten/src/ATen/native/native_functions.yaml has "
    "kernels for SparseCsrCPU and SparseCsrCUDA only"
)

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation("sparse.mm.reduce", "only strided ones", _COMPRESSED, _COMPRESSED_SOURCE),
    Deviation("sparse.sampled_addmm", "only strided ones", _COMPRESSED, _COMPRESSED_SOURCE),
    Deviation(
        "SGD",
        "fused=True: AssertionError: Tensor-likes are not close!",
        "the CPU's fused kernel leaves whole vectors of half-precision momentum unwritten, on the CPU too: "
        "what is in that memory differs from run to run",
        "pytorch/pytorch#191763",
        ("bfloat16",),
        sometimes=True,
    ),
)


_PAD_REPLICATE = (
    "where deterministic algorithms are asked for, functional.pad takes another one for tensors that say "
    "is_cuda, whose sums are of another order"
)

ON_CUDA = (
    *DEVIATIONS,
    *(
        Deviation(op, "are not close!", _PAD_REPLICATE, "torch/nn/functional.py, pad()", ("bfloat16",))
        for op in ("nn.functional.pad.replicate", "nn.functional.pad.replicate_negative")
    ),
    Deviation(
        "renorm",
        "are not close!",
        "the backward accumulates in float on CUDA by its name, and in double on every other device",
        "torch/csrc/autograd/FunctionsManual.cpp, renorm_backward()",
        ("complex64",),
    ),
)
"""What may differ between the two names of an NVIDIA GPU: those, and formulas that go by the name."""


def deviation_of(
    op: str, dtype: str, error: str, entries: Iterable[Deviation] = DEVIATIONS
) -> Deviation | None:
    """Return the entry that expects `error` of `op`, None if there is none."""
    for entry in entries:
        if entry.op == op and entry.error in error and dtype in (entry.dtypes or (dtype,)):
            return entry
    return None
