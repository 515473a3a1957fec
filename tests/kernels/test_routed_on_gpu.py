"""The norm ops as they are served on an NVIDIA GPU, by recipes in native code: graphs, streams, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tefl
from tefl.kernels.cuda import table

from ..ops.samples.sample import Sample, random
from .numerics import OPS, backward_call, forward_call

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

FORWARD = tuple(op for op in OPS if op.endswith("fwd"))
IMPL_IDS = {"flagos": "default.flagos", "vendor": "vendor.cuda"}


@pytest.fixture(params=IMPL_IDS)
def impl_id(request: pytest.FixtureRequest) -> Iterator[str]:
    """Triton's or CUDA C++'s implementation serves all calls of the test."""
    if request.param == "flagos":
        pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    elif not table._FATBINS.is_dir():
        pytest.skip("no CUDA kernels were built")
    tefl.set_global_policy(tefl.SelectionPolicy(prefer=request.param))
    yield IMPL_IDS[request.param]
    tefl.reset_global_policy()


def sample(op: str, rows: int, columns: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Sample:
    call = forward_call if op.endswith("fwd") else backward_call
    made = call(op, random(rows, columns, dtype=dtype, seed=seed) + 0.5, dtype, zero_centered=False)
    return made.mapped(lambda tensor: tensor.cuda())


def run(op: str, call: Sample) -> tuple[Tensor, ...]:
    return getattr(torch.ops.tefl, op)(*call.args, **call.kwargs)


def refill(call: Sample, other: Sample) -> None:
    for into, values in zip(call.args, other.args, strict=True):
        if isinstance(into, Tensor):
            into.copy_(values)


def equal(got: Any, wanted: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def served_by(op: str, call: Sample) -> set[str]:
    with tefl.record() as calls:
        run(op, call)
    return {key[1] for key in calls}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("columns", [1024, 1000, 20000], ids=str)
def test_native_code_gives_the_bits_that_python_gives(impl_id: str, op: str, columns: int) -> None:
    """A call's first is served by Python, and so is one that is recorded; the others are not."""
    call = sample(op, 37, columns)
    first = run(op, call)
    assert all(equal(run(op, call), first) for _ in range(3))
    assert served_by(op, call) == {impl_id}
    strided = call.mapped(lambda t: t.repeat_interleave(2, -1)[..., ::2] if t.dim() == 2 else t)
    assert all(equal(run(op, strided), first) for _ in range(3))


@pytest.mark.parametrize("op", OPS)
def test_a_captured_graph_replays_the_same_bits(impl_id: str, op: str) -> None:
    for columns in (64, 4096, 5000):
        call, others = sample(op, 130, columns), sample(op, 130, columns, seed=7)
        for _ in range(2):
            run(op, call)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run(op, call)
        refill(call, others)
        graph.replay()
        assert equal(captured, run(op, call))


@pytest.mark.parametrize("op", FORWARD)
def test_a_captured_graph_of_forward_and_backward(impl_id: str, op: str) -> None:
    call, others = sample(op, 64, 2048), sample(op, 64, 2048, seed=7)
    leaves = [arg.requires_grad_() for arg in call.args if isinstance(arg, Tensor)]
    grad = torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(run(op, call)[0], leaves, grad)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            gradients()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients()
    with torch.no_grad():
        refill(call, others)
    graph.replay()
    assert equal(captured, gradients())


@pytest.mark.parametrize("op", OPS)
def test_no_call_waits_for_the_device(impl_id: str, op: str) -> None:
    """Neither the first of its form nor those that native code serves."""
    call = sample(op, 19, 256)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            run(op, call)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_no_backward_waits_for_the_device(impl_id: str) -> None:
    x, weight = (torch.randn(*s, device="cuda", requires_grad=True) for s in ((8, 512), (512,)))
    grad = torch.randn(8, 512, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            torch.ops.tefl.rmsnorm_fwd(x, weight)[0].backward(grad)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def together(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """Run it on so many threads at once; what they raised."""
    gate, errors = threading.Barrier(count), []

    def guarded(number: int) -> None:
        try:
            gate.wait(timeout=60)
            work(number)
        except BaseException as error:  # noqa: BLE001 - shown by the caller
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_and_streams_at_once_compile_a_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    from tefl.kernels import launcher

    compiled: list[Any] = []
    compile_triton = launcher.compile_triton
    monkeypatch.setattr(
        launcher, "compile_triton", lambda *args: compiled.append(args[:2]) or compile_triton(*args)
    )
    calls = [sample("rmsnorm_fwd", 50 + number, 1904, torch.float16, seed=number) for number in range(4)]
    wanted = [
        torch.nn.functional.rms_norm(c.args[0].float(), (1904,), c.args[1].float(), 1e-5) for c in calls
    ]
    torch.cuda.synchronize()

    def work(number: int) -> None:
        for _ in range(50):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                out, _ = run("rmsnorm_fwd", calls[number])
            stream.synchronize()
            torch.testing.assert_close(out.float(), wanted[number], rtol=2e-3, atol=2e-3)

    assert together(4, work) == []
    assert len(compiled) == 1
