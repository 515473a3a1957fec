"""The CUDA C++ norm kernels give what float64 gives, as far as their dtypes allow: compiled for the host.

What is tested is the source of the kernels and how they are laid over a problem. `cuda_on_host.h` says how.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tefl.dispatch.types import Facts
from tefl.kernels.cuda import _plan, norm, table

from ..ops.samples.sample import Sample, random
from .host_cuda import ROOT, HostKernel, build
from .numerics import OPS, assert_right, backward_call, forward_call, samples

TYPES = (
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
    (torch.float16, torch.float32),
    (torch.float32, torch.float32),
)
types = pytest.mark.parametrize("types", TYPES, ids=lambda pair: "-".join(str(dtype)[6:] for dtype in pair))
ops = pytest.mark.parametrize("op", OPS)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    sources = (ROOT / "csrc" / "kernels").glob("*.cu")
    return {source.stem: build(source, tmp_path_factory.mktemp(source.stem)) for source in sources}


@pytest.fixture(autouse=True)
def on_the_host(libraries: dict[str, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Implementations launch host kernels, on a device of two multiprocessors, into memory full of NaN."""

    def kernel(image: Path, name: str, signature: str) -> HostKernel:
        return HostKernel(libraries[image.stem], name, signature)

    monkeypatch.setattr(norm, "BinaryKernel", kernel)
    monkeypatch.setattr(norm, "_multiprocessors", lambda index: 2)
    norm._kernel.cache_clear()
    norm._reduce_kernel.cache_clear()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    norm._kernel.cache_clear()
    norm._reduce_kernel.cache_clear()


def run(op: str, sample: Sample) -> None:
    assert_right(op, sample, getattr(norm, op)(*sample.args, **sample.kwargs))


def call(op: str, x: torch.Tensor, weight_dtype: torch.dtype, zero_centered: bool) -> Sample:
    return (forward_call if op.endswith("fwd") else backward_call)(op, x, weight_dtype, zero_centered)


def declined(op: str, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(table, "_not_built", lambda: None)
    dtypes = tuple(value.dtype for value in sample.args if isinstance(value, torch.Tensor))
    impl = next(impl for impl in table.implementations() if impl.op_name == op)
    static = impl.is_available(Facts("cuda", 0, dtypes, (9, 0)))
    dynamic = impl.supports and impl.supports(*sample.args, **{"out_dtype": None, **sample.kwargs})
    return bool(static or dynamic)


@ops
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_awkward_calls(op: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    served = [sample for sample in samples(op, dtype) if not declined(op, sample, monkeypatch)]
    assert len(served) >= 11  # all that are awkward by their layout
    for sample in served:
        run(op, sample)


@ops
@types
@pytest.mark.parametrize("columns", [64, 512, 1000, 2048])
def test_rows_kept_in_registers(op: str, types: tuple[torch.dtype, torch.dtype], columns: int) -> None:
    """1, 2 and 4 vectors a thread; rows that share a block, and rows that have one of several warps."""
    dtype, weight_dtype = types
    rows = 40 if columns < 2048 else 9  # more than the blocks of two multiprocessors have room for
    run(op, call(op, random(rows, columns, dtype=dtype) + 0.5, weight_dtype, zero_centered=columns == 512))


@ops
@types
@pytest.mark.parametrize("layout", ["loop", "scalar"])
def test_rows_read_again_for_each_pass(
    op: str, types: tuple[torch.dtype, torch.dtype], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rows of more than 16384 columns, and rows that are no whole number of vectors, get."""
    plan = _plan.Plan(layout, threads=64, rows=1, kept=0, resident=2)
    monkeypatch.setattr(norm, "forward_plan", lambda *_: plan)
    monkeypatch.setattr(norm, "backward_plan", lambda *_: plan)
    columns = 1600 if layout == "loop" else 333
    run(op, call(op, random(9, columns, dtype=types[0]) + 0.5, types[1], zero_centered=False))


@ops
def test_a_weight_of_a_third_dtype(op: str) -> None:
    """None is compiled for it: it is widened to float32, and its gradient comes back in its own dtype."""
    run(op, call(op, random(7, 96, dtype=torch.bfloat16), torch.float16, zero_centered=False))


def test_rows_that_start_off_a_16_byte_boundary() -> None:
    wide = random(6, 4 * 40 + 3)
    for x in (wide[:, 1:161], wide[:, :160]):  # every row off; every fourth on
        run("rmsnorm_fwd", forward_call("rmsnorm_fwd", x, torch.float32, False))


def test_the_same_bits_every_time() -> None:
    sample = backward_call("rmsnorm_bwd", random(50, 256), torch.float32, False)
    first, second = (norm.rmsnorm_bwd(*sample.args, **sample.kwargs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_no_bias_gradient_is_an_empty_tensor() -> None:
    sample = backward_call("layernorm_bwd", random(5, 64), torch.float32, False)
    run("layernorm_bwd", Sample("", sample.args, {**sample.kwargs, "bias_grad": False}))
