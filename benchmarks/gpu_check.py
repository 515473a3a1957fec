"""Check every norm kernel on an NVIDIA GPU against float64, and measure it roughly.

    python benchmarks/gpu_check.py FOLDER

Runs the Triton and the CUDA C++ implementation of every norm op for bfloat16, float16 and float32 at 1 to
32768 rows and 64 to 32768 columns, odd ones included; prints the worst case of each kind and writes the same
to FOLDER/<gpu>-<date>.json.
Exit status 1 if any result is wrong. Builds nothing: tefl must be built, with CUDA kernels. Takes a few
minutes, most of which Triton spends compiling. Speeds are shown only if every result was right.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import gpu_timing
from benchmarks.gpu_report import Finding, facts, summarise
from tefl.kernels.cuda import norm as cuda_norm
from tefl.kernels.triton.ops import norm as triton_norm

IMPLEMENTATIONS = {"default.flagos": triton_norm, "vendor.cuda": cuda_norm}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
COLUMNS = (
    64,
    65,
    250,
    256,
    1000,
    1023,
    1024,
    2048,
    3584,
    4096,
    5120,
    7168,
    8192,
    8193,
    16384,
    20000,
    32767,
    32768,
)
LARGEST = 2**27  # elements of one check: a float64 copy of it is 1 GiB
EPS = 1e-5
# A result is rounded once: half a unit in the last place, 2^-9, 2^-12, 2^-25, with room for the float32 sums.
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 4e-6}


Results = tuple[str, dict[str, Tensor], dict[str, Tensor]]
"""An op, what it gave and what is expected, by name of the result."""


@dataclass(frozen=True)
class Case:
    """One problem: shape, dtypes, options."""

    rows: int
    columns: int
    dtype: torch.dtype
    weight_dtype: torch.dtype
    zero_centered: bool

    @property
    def dtypes(self) -> str:
        return f"{self.dtype}/{self.weight_dtype}".replace("torch.", "")

    def __str__(self) -> str:
        centring = " zero-centred" if self.zero_centered else ""
        return f"{self.rows}x{self.columns} {self.dtypes}{centring}"


def cases() -> Iterator[Case]:
    """Every number of columns at few, some and many rows; weight dtype and centring take turns."""
    turn = 0
    for dtype in DTYPES:
        for columns in COLUMNS:
            turn += 1  # not at each number of rows, for the sake of Triton's compile time
            most = min(32768, LARGEST // columns)
            for rows in (1, 257, most if columns in (64, 65, 4096, 5120, 32768) else 1031):
                yield Case(rows, columns, dtype, torch.float32 if turn % 2 else dtype, turn % 3 == 0)


@dataclass
class Inputs:
    x: Tensor
    residual: Tensor
    grad: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    def draw(cls, case: Case) -> Inputs:
        def rows() -> Tensor:
            return torch.randn(case.rows, case.columns, device="cuda").to(case.dtype)

        def vector(center: float) -> Tensor:
            return (center + 0.2 * torch.randn(case.columns, device="cuda")).to(case.weight_dtype)

        x = rows() + 0.5  # off centre, so that LayerNorm's mean matters
        return cls(x, rows(), rows(), vector(0.0 if case.zero_centered else 1.0), vector(0.0))


def expected(
    x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor, zero_centered: bool
) -> dict[str, Tensor]:
    """LayerNorm (with a bias) or RMSNorm of x by torch's functional ops and autograd, all in float64."""
    x64 = x.double().requires_grad_()
    w64 = weight.double().requires_grad_()
    b64 = None if bias is None else bias.double().requires_grad_()
    gamma = w64 + 1 if zero_centered else w64
    if b64 is None:
        out = F.rms_norm(x64, x.shape[-1:], gamma, EPS)
        mean = None
        rsigma = (x64.detach().square().mean(-1) + EPS).rsqrt()
    else:
        out = F.layer_norm(x64, x.shape[-1:], gamma, b64, EPS)
        mean = x64.detach().mean(-1)
        rsigma = (x64.detach().var(-1, correction=0) + EPS).rsqrt()
    out.backward(grad.double())
    results = {"out": out.detach(), "mu": mean, "rsigma": rsigma, "dinput": x64.grad, "dweight": w64.grad}
    results["dbias"] = None if b64 is None else b64.grad
    return {name: value for name, value in results.items() if value is not None}


def worst_row(got: Tensor, wanted: Tensor) -> float:
    """The largest relative error of a row; of the whole where the tensor is one row or one value a row."""
    if got.shape != wanted.shape:
        return float("inf")
    error = torch.linalg.vector_norm(got.double() - wanted, dim=-1)
    return float((error / torch.linalg.vector_norm(wanted, dim=-1).clamp_min(1e-30)).max())


def layernorm_results(ops: ModuleType, i: Inputs, zc: bool) -> Iterator[Results]:
    want = expected(i.x, i.weight, i.bias, i.grad, zc)
    out, mu, rsigma = ops.layernorm_fwd(i.x, i.weight, i.bias, EPS, zero_centered_gamma=zc, out_dtype=None)
    yield "layernorm_fwd", {"out": out, "mu": mu, "rsigma": rsigma}, want
    got = ops.layernorm_bwd(i.grad, i.x, mu, rsigma, i.weight, zero_centered_gamma=zc, bias_grad=True)
    yield "layernorm_bwd", dict(zip(("dinput", "dweight", "dbias"), got, strict=True)), want


def rmsnorm_results(ops: ModuleType, i: Inputs, zc: bool) -> Iterator[Results]:
    want = expected(i.x, i.weight, None, i.grad, zc)
    out, rsigma = ops.rmsnorm_fwd(i.x, i.weight, EPS, zero_centered_gamma=zc, out_dtype=None)
    yield "rmsnorm_fwd", {"out": out, "rsigma": rsigma}, want
    got = ops.rmsnorm_bwd(i.grad, i.x, rsigma, i.weight, zero_centered_gamma=zc)
    yield "rmsnorm_bwd", dict(zip(("dinput", "dweight"), got, strict=True)), want
    got = ops.rmsnorm_bwd_add(i.grad, i.x, i.residual, rsigma, i.weight, zero_centered_gamma=zc)
    want = want | {"dinput": want["dinput"] + i.residual.double()}
    yield "rmsnorm_bwd_add", dict(zip(("dinput", "dweight"), got, strict=True)), want


def add_rmsnorm_results(ops: ModuleType, i: Inputs, zc: bool) -> Iterator[Results]:
    total = i.x + i.residual
    want = expected(total, i.weight, None, i.grad, zc) | {"residual_out": total.double()}
    out, residual_out, rsigma = ops.add_rmsnorm_fwd(
        i.x, i.residual, i.weight, EPS, zero_centered_gamma=zc, out_dtype=None
    )
    yield "add_rmsnorm_fwd", {"out": out, "residual_out": residual_out, "rsigma": rsigma}, want
    got = ops.add_rmsnorm_bwd(i.grad, i.residual, residual_out, rsigma, i.weight, zero_centered_gamma=zc)
    want = want | {"dinput": want["dinput"] + i.residual.double()}
    yield "add_rmsnorm_bwd", dict(zip(("dinput", "dweight"), got, strict=True)), want


def check_case(implementation: str, case: Case) -> Iterator[Finding]:
    inputs = Inputs.draw(case)
    for results in (layernorm_results, rmsnorm_results, add_rmsnorm_results):
        for op, got, want in results(IMPLEMENTATIONS[implementation], inputs, case.zero_centered):
            for name, value in got.items():
                error = worst_row(value, want[name])
                yield Finding(implementation, str(case), case.dtypes, op, name, error, TOLERANCE[value.dtype])


def check_all() -> list[Finding]:
    findings: list[Finding] = []
    for number, case in enumerate(cases()):
        torch.manual_seed(number)
        for implementation in IMPLEMENTATIONS:
            findings += attempt(partial(check_case, implementation, case), implementation, str(case))
    return findings


def attempt(check: Callable[[], Iterator[Finding]], implementation: str, case: str) -> list[Finding]:
    """A check that raises is a wrong result, and the others still run."""
    try:
        return list(check())
    except Exception:  # noqa: BLE001
        print(f"{implementation} {case}\n{traceback.format_exc(limit=-4)}", flush=True)
        return [Finding(implementation, case, "", "raised", "", float("inf"), 0.0)]


# -- what a table of shapes does not show; each returns an error in the sense of `Finding` -------------------


def same_bits_twice(ops: ModuleType) -> float:
    """The backward gives the same bits on every run."""
    i = Inputs.draw(Case(4099, 1024, torch.bfloat16, torch.bfloat16, False))
    _, rsigma = ops.rmsnorm_fwd(i.x, i.weight, EPS)
    first, second = (ops.rmsnorm_bwd(i.grad, i.x, rsigma, i.weight)[1] for _ in range(2))
    return 0.0 if torch.equal(first, second) else 1.0


def strided_rows(ops: ModuleType) -> float:
    """A slice of wider rows, and a 5-D tensor whose rows are not evenly spaced."""
    wide = torch.randn(2, 3, 4, 5, 640, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(512, device="cuda", dtype=torch.bfloat16)
    errors = []
    for x in (wide[..., 64:576], wide[..., :512].transpose(1, 2)):
        errors.append(
            worst_row(ops.rmsnorm_fwd(x, weight, EPS)[0], F.rms_norm(x.double(), (512,), None, EPS))
        )
    return max(errors)


def captured_at_first_launch(ops: ModuleType) -> float:
    """A CUDA graph of forward and backward of which no kernel was loaded before, replayed on new data."""
    i = Inputs.draw(Case(512, 2048, torch.bfloat16, torch.bfloat16, False))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, rsigma = ops.rmsnorm_fwd(i.x, i.weight, EPS)
        dinput, dweight = ops.rmsnorm_bwd(i.grad, i.x, rsigma, i.weight)
    i.x.copy_(torch.randn_like(i.x))
    graph.replay()
    want = expected(i.x, i.weight, None, i.grad, False)
    got = {"out": out, "dinput": dinput, "dweight": dweight}
    return max(worst_row(value, want[name]) for name, value in got.items())


def on_the_current_stream(ops: ModuleType) -> float:
    """The launch follows work that is still running on a side stream."""
    stream = torch.cuda.Stream()
    x = torch.zeros(4096, 4096, device="cuda")
    weight = torch.ones(4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.normal_()
        out, _ = ops.rmsnorm_fwd(x, weight, EPS)
    stream.synchronize()
    return worst_row(out, F.rms_norm(x.double(), (4096,), None, EPS))


def beyond_2_to_the_31(ops: ModuleType) -> float:
    """The last rows of a tensor of more than 2^31 elements."""
    x, grad = (torch.randn(65600, 32768, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.ones(32768, device="cuda", dtype=torch.bfloat16)
    out, rsigma = ops.rmsnorm_fwd(x, weight, EPS)
    dinput, _ = ops.rmsnorm_bwd(grad, x, rsigma, weight)
    want = expected(x[-8:], weight, None, grad[-8:], False)
    return max(worst_row(out[-8:], want["out"]), worst_row(dinput[-8:], want["dinput"]))


def from_a_new_thread(ops: ModuleType) -> float:
    """A thread that has not touched CUDA before."""
    import threading

    errors: list[float] = []
    x = torch.randn(33, 768, device="cuda", dtype=torch.float16)
    weight = torch.ones(768, device="cuda", dtype=torch.float16)

    def work() -> None:
        out, _ = ops.rmsnorm_fwd(x, weight, EPS)
        errors.append(worst_row(out, F.rms_norm(x.double(), (768,), None, EPS)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return errors[0] if errors else float("inf")


PROPERTIES: tuple[Callable[[ModuleType], float], ...] = (
    captured_at_first_launch,
    same_bits_twice,
    strided_rows,
    on_the_current_stream,
    beyond_2_to_the_31,
    from_a_new_thread,
)


def check_properties() -> list[Finding]:
    findings: list[Finding] = []
    for implementation, ops in IMPLEMENTATIONS.items():
        for check in PROPERTIES:
            torch.cuda.empty_cache()
            findings += attempt(
                partial(check_property, implementation, ops, check), implementation, check.__name__
            )
    return findings


def check_property(
    implementation: str, ops: ModuleType, check: Callable[[ModuleType], float]
) -> Iterator[Finding]:
    yield Finding(implementation, check.__name__, "", "property", check.__name__, check(ops), 4e-3)


# -- the report ----------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the norm kernels on an NVIDIA GPU.")
    parser.add_argument("folder", type=Path, help="where the JSON file goes")
    folder = parser.parse_args().folder
    started = time.monotonic()
    report = facts()
    torch.use_deterministic_algorithms(
        True, warn_only=True
    )  # fills torch.empty with NaN: what is not written shows
    findings = check_properties() + check_all()
    torch.use_deterministic_algorithms(False)
    torch.cuda.empty_cache()
    wrong = [f for f in findings if not f.right]
    summaries = summarise(findings)
    report["checks"] = [asdict(summary) for summary in summaries]
    print(*summaries, sep="\n")
    print(f"{len(findings)} results, {len(wrong)} wrong, {time.monotonic() - started:.0f} s")
    for f in wrong[:20]:
        print(f"WRONG {f.implementation} {f.op} {f.result} {f.error:.2e} > {f.tolerance:.0e} at {f.case}")
    if not wrong:
        report["bandwidth"] = gpu_timing.bandwidths(IMPLEMENTATIONS)
        report["host"] = gpu_timing.host_times(IMPLEMENTATIONS)
    print(
        f"{report['gpu']}, torch {report['torch']}, triton {report['triton']}, "
        f"{time.monotonic() - started:.0f} s in all"
    )
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{report['gpu'].replace(' ', '-').lower()}-{report['date'][:10]}.json"
    (folder / name).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
