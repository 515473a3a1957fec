"""Rough speeds of the norm kernels, each beside torch's own in the same run.

Kernels: several buffer sets that together exceed the cache are rotated inside one captured graph of 40
launches, on random data; the median of 7 replays counts. Host time: a tight loop without synchronisation on a
small tensor, the best of 5. Only ratios within one run mean something.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SHAPES = ((8192, 2048), (8192, 4096), (8192, 5120), (8192, 8192), (32768, 4096), (8192, 16384))
CACHE_BYTES = 180e6
LAUNCHES, REPLAYS = 40, 7
EPS = 1e-5

Run = Callable[[Tensor, Tensor, Tensor, Tensor], Any]
"""Of x, grad, rsigma (float32, one value a row) and weight."""


def forward(ops: ModuleType) -> Run:
    return lambda x, grad, rsigma, weight: ops.rmsnorm_fwd(x, weight, EPS)


def backward(ops: ModuleType) -> Run:
    return lambda x, grad, rsigma, weight: ops.rmsnorm_bwd(grad, x, rsigma, weight)


def torch_forward(x: Tensor, grad: Tensor, rsigma: Tensor, weight: Tensor) -> Any:
    return torch.ops.aten._fused_rms_norm(x, weight.shape, weight, EPS)


def torch_backward(x: Tensor, grad: Tensor, rsigma: Tensor, weight: Tensor) -> Any:
    return torch.ops.aten._fused_rms_norm_backward(
        grad, x, weight.shape, rsigma.unsqueeze(-1), weight, [True, True]
    )


def microseconds(run: Run, rows: int, columns: int) -> float:
    """Of one call, by the method above."""
    count = max(3, min(8, int(CACHE_BYTES / (4 * rows * columns)) + 1))
    sets = [_buffers(rows, columns) for _ in range(count)]
    for buffers in sets[:2]:
        run(*buffers)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    kept: list[Any] = [None] * count  # else every launch would write to the same, cached, memory
    with torch.cuda.graph(graph):
        for i in range(LAUNCHES):
            kept[i % count] = run(*sets[i % count])
    graph.replay()
    return statistics.median(_replay(graph) for _ in range(REPLAYS)) / LAUNCHES


def _buffers(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, grad = (torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rsigma = (x.float().square().mean(-1) + EPS).rsqrt()
    return x, grad, rsigma, torch.randn(columns, device="cuda", dtype=torch.bfloat16)


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1000 * start.elapsed_time(end)


def bandwidths(implementations: Mapping[str, ModuleType]) -> list[dict[str, Any]]:
    """TB/s of bfloat16 RMSNorm forward and backward; each tensor counts once, 2 bytes an element."""
    results: list[dict[str, Any]] = []
    for rows, columns in SHAPES:
        each = 2 * rows * columns
        runs = {
            "fwd": (2 * each, {"torch": torch_forward} | {n: forward(o) for n, o in implementations.items()}),
            "bwd": (
                3 * each,
                {"torch": torch_backward} | {n: backward(o) for n, o in implementations.items()},
            ),
            "copy": (2 * each, {"copy": lambda x, grad, rsigma, weight: grad.copy_(x)}),
        }
        for direction, (total, peers) in runs.items():
            speeds = {name: total / microseconds(run, rows, columns) / 1e6 for name, run in peers.items()}
            results.append(
                {"rows": rows, "columns": columns, "direction": direction, "terabytes_per_second": speeds}
            )
            print(
                f"{rows}x{columns} {direction:4} TB/s  "
                + "  ".join(f"{n} {s:.2f}" for n, s in speeds.items())
            )
            torch.cuda.empty_cache()
    return results


def host_times(implementations: Mapping[str, ModuleType]) -> dict[str, float]:
    """Microseconds of host time a call, 16x64 bfloat16, and the ratio of each to F.rms_norm's."""
    x = torch.randn(16, 64, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(64, device="cuda", dtype=torch.bfloat16)
    calls: dict[str, Callable[[], Any]] = {
        "F.rms_norm": lambda: F.rms_norm(x, (64,), weight, EPS),
        "torch.add": lambda: torch.add(x, x),
        "torch.empty_like": lambda: torch.empty_like(x),
    }
    for name, ops in implementations.items():
        calls[name] = lambda ops=ops: ops.rmsnorm_fwd(x, weight, EPS)  # type: ignore[misc]
    try:
        import tefl  # noqa: F401

        calls["torch.ops.tefl.rmsnorm_fwd"] = lambda: torch.ops.tefl.rmsnorm_fwd(x, weight, EPS)
    except ImportError as error:
        print(f"the routed op is not measured: {error}")
    results = {name: host_us(call) for name, call in calls.items()}
    base = results["F.rms_norm"]
    print("host us  " + "  ".join(f"{n} {t:.1f} ({t / base:.2f}x)" for n, t in results.items()))
    return results


def host_us(call: Callable[[], Any], repeats: int = 5, loops: int = 300) -> float:
    """Microseconds of host time a call; the best of several loops without synchronisation."""
    best = float("inf")
    for _ in range(repeats):
        call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(loops):
            call()
        best = min(best, time.perf_counter() - start)
    torch.cuda.synchronize()
    return 1e6 * best / loops
