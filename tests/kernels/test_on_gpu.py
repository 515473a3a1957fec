"""The norm kernels on an NVIDIA GPU: a small part of what benchmarks/gpu_check.py checks."""

from __future__ import annotations

from itertools import product
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from tefl.kernels.cuda import norm as cuda
from tefl.kernels.cuda import table

from ..ops.samples.sample import random
from .numerics import DTYPES, OPS, assert_right, backward_call, forward_call

SHAPES = ((1, 64), (1031, 1000), (37, 1023), (64, 8192), (3, 33000))

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture(params=["triton", "cuda"])
def implementation(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "cuda":
        if not table._FATBINS.is_dir():
            pytest.skip("no CUDA kernels were built")
        return cuda
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    from tefl.kernels.triton.ops import norm

    return norm


@pytest.mark.parametrize("op", OPS)
def test_results(implementation: ModuleType, op: str) -> None:
    call = forward_call if op.endswith("fwd") else backward_call
    for dtype, shape in product(DTYPES, SHAPES):
        sample = call(op, random(*shape, dtype=dtype) + 0.5, torch.float32, shape[0] % 2 == 0)
        moved = sample.mapped(lambda tensor: tensor.cuda())
        got = getattr(implementation, op)(*moved.args, **moved.kwargs)
        assert_right(op, sample, tuple(result.cpu() for result in got))


def test_a_captured_graph_replays_on_new_data(implementation: ModuleType) -> None:
    x, weight = torch.randn(64, 768, device="cuda"), torch.rand(768, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = implementation.rmsnorm_fwd(x, weight, 1e-5)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out, F.rms_norm(x, (768,), weight, 1e-5))


def test_the_launch_follows_the_current_stream(implementation: ModuleType) -> None:
    stream = torch.cuda.Stream()
    x, weight = torch.zeros(2048, 2048, device="cuda"), torch.ones(2048, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.normal_()
        out, _ = implementation.rmsnorm_fwd(x, weight, 1e-5)
    stream.synchronize()
    torch.testing.assert_close(out, F.rms_norm(x, (2048,), weight, 1e-5))


def test_the_launch_is_on_the_device_of_the_tensors(implementation: ModuleType) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x, weight = torch.randn(8, 256, device="cuda:1"), torch.rand(256, device="cuda:1")
    out, _ = implementation.rmsnorm_fwd(x, weight, 1e-5)
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(out, F.rms_norm(x, (256,), weight, 1e-5))
