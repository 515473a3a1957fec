"""PyTorch's own samples that pass on the CPU and not on the device: why, and where in torch."""

from __future__ import annotations

from typing import NamedTuple


class Deviation(NamedTuple):
    """Expected failures: of the operator, module or optimizer `op`, with `error` in their message."""

    op: str
    error: str
    reason: str
    source: str  # an upstream issue, or the file of torch that makes it so
    dtypes: tuple[str, ...] = ()  # in which; in every one if empty


_SPARSE = (
    "the alias kernel refuses layouts that are not strided, by name: their kernels are registered per device"
)
_SPARSE_SOURCE = (
    "aten/src/ATen/native/native_functions.yaml: SparseCPU, SparseCUDA, SparseCsrCPU, SparseCsrCUDA"
)
_CHUNKED = (
    "accumulation and chunk size are chosen by the device's name; the device gets the accelerators' default"
)
_CHUNKED_SOURCE = "torch/nn/modules/linear_cross_entropy_options.py, _AUTO_DEFAULTS"

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation("to_sparse", "only strided ones are supported", _SPARSE, _SPARSE_SOURCE),
    Deviation("sparse.mm.reduce", "only strided ones are supported", _SPARSE, _SPARSE_SOURCE),
    Deviation("sparse.sampled_addmm", "only strided ones are supported", _SPARSE, _SPARSE_SOURCE),
    *(
        Deviation(
            f"nn.functional.linear_cross_entropy.{variant}",
            "not close!",
            _CHUNKED,
            _CHUNKED_SOURCE,
            ("bfloat16",),
        )
        for variant in ("chunked", "chunked_none")
    ),
    Deviation("nn.LinearCrossEntropyLoss", "not close!", _CHUNKED, _CHUNKED_SOURCE, ("bfloat16",)),
    Deviation("SparseAdam", "only strided ones are supported", _SPARSE, _SPARSE_SOURCE),
    Deviation(
        "ASGD",
        "one of the variables needed for gradient computation has been modified",
        "a capturable and differentiable step writes into what it saved; the CPU has no capturable one",
        "torch/optim/asgd.py, _single_tensor_asgd",
    ),
    Deviation(
        "SGD",
        "fused=True: AssertionError: Tensor-likes are not close!",
        "the CPU's fused kernel leaves whole vectors of half-precision momentum unwritten, on the CPU too",
        "pytorch/pytorch#191763",
        ("bfloat16",),
    ),
)


def deviation_of(op: str, dtype: str, error: str) -> Deviation | None:
    """Return the entry that expects `error` of `op`, None if there is none."""
    for entry in DEVIATIONS:
        if entry.op == op and entry.error in error and dtype in (entry.dtypes or (dtype,)):
            return entry
    return None
