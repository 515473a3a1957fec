"""What a call costs on top of its implementation, each figure a ratio to something measured beside it.

    python benchmarks/bench_overhead.py [--device cuda] [--json benchmarks/results]

A case has a subject and a baseline. Both are timed in turn, many short rounds of each, so that whatever else
the machine does meets both; the ratio of a case is the median of its rounds' ratios, its spread their
quartiles. Host time: nothing waits for a device, but where a case says that it is timed to the end of the
device's work. Functions that do nothing hand out results that were made
before, one pair a call, since a result that is handed out twice would have a history already.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent.parent))

import tefl
from benchmarks.decode_block import HIDDEN, DecodeBlock
from benchmarks.facts import now, versions

ROWS, COLUMNS = 16, 64
CALLS = 400  # of each function in a round
WARM_UP = 100
SCHEMA = (
    "(Tensor input, Tensor weight, float eps=1e-5, *, bool zero_centered_gamma=False, "
    "ScalarType? out_dtype=None) -> (Tensor out, Tensor rsigma)"
)


@dataclass(frozen=True)
class Case:
    """``subject`` and ``baseline`` are called with nothing; each may have a context that it is timed in."""

    name: str
    subject: Callable[[], Any]
    baseline: Callable[[], Any]
    goal: float | None = None
    around_subject: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    around_baseline: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    to_the_end: bool = False
    """Whether the time includes waiting for the device to finish."""


@dataclass(frozen=True)
class Figure:
    """What came of a case: ratios of times, and the times themselves in microseconds a call."""

    name: str
    ratio: float
    low: float
    high: float
    goal: float | None
    subject_us: float
    baseline_us: float

    @property
    def holds(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        return None if self.goal is None else self.ratio <= self.goal


class Results:
    """Ready-made results of rmsnorm_fwd and rmsnorm_bwd, each handed out once, and kept to the round's end:
    what freeing them costs depends on how the heap lies, and is no part of a call."""

    def __init__(self, x: Tensor, weight: Tensor) -> None:
        self._x, self._weight = x.detach(), weight.detach()
        self._kept: list[tuple[Tensor, Tensor]] = []
        self.forward: Iterator[tuple[Tensor, Tensor]] = iter(())
        self.backward: Iterator[tuple[Tensor, Tensor]] = iter(())

    def refill(self) -> None:
        """Make as many as a round takes."""
        rsigma = torch.empty(ROWS, device=self._x.device)
        need = range(CALLS + WARM_UP)
        forward = [(torch.empty_like(self._x), rsigma.clone()) for _ in need]
        backward = [(torch.empty_like(self._x), torch.empty_like(self._weight)) for _ in need]
        self._kept, self.forward, self.backward = forward + backward, iter(forward), iter(backward)


def median_of_rounds(case: Case, results: Results, rounds: int) -> Figure:
    """Time the two in turn; which goes first changes from round to round."""
    ratios: list[float] = []
    times: dict[str, list[float]] = {"subject": [], "baseline": []}
    for number in range(rounds):
        order = ["subject", "baseline"] if number % 2 else ["baseline", "subject"]
        for which in order:
            function, around = getattr(case, which), getattr(case, f"around_{which}")
            with around():
                times[which].append(one_round(function, results, case.to_the_end))
        ratios.append(times["subject"][-1] / times["baseline"][-1])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Figure(
        case.name, middle, low, high, case.goal,
        statistics.median(times["subject"]) * 1e6, statistics.median(times["baseline"]) * 1e6,
    )  # fmt: skip


def one_round(function: Callable[[], Any], results: Results, to_the_end: bool) -> float:
    """Seconds a call."""
    results.refill()
    for _ in range(WARM_UP):
        function()
    wait_for_device()
    gc.disable()
    start = time.perf_counter()
    for _ in range(CALLS):
        function()
    if to_the_end:
        wait_for_device()
    elapsed = time.perf_counter() - start
    gc.enable()
    wait_for_device()
    return elapsed / CALLS


def wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# ---------------------------------------------------------------------------- what is compared --


class Nothing:
    """The functions that do nothing, under each of the ways to make an op of them."""

    def __init__(self, results: Results) -> None:
        def forward(input: Any, weight: Any, eps: Any = 1e-5, **options: Any) -> tuple[Tensor, Tensor]:
            return next(results.forward)

        def backward(
            grad: Any, input: Any, rsigma: Any, weight: Any, **options: Any
        ) -> tuple[Tensor, Tensor]:
            return next(results.backward)

        self.forward, self.backward = forward, backward

    def register(self, count: int = 1) -> None:
        """Implementations of tefl's ops, of which the first one runs."""
        functions = {"rmsnorm_fwd": self.forward, "rmsnorm_bwd": self.backward}
        tefl.get_registry().register_many(
            tefl.OpImpl(op, f"vendor.nothing{i:04}", "vendor", fn, vendor="nothing", priority=1000 - i)
            for op, fn in functions.items()
            for i in range(count)
        )

    def bare(self) -> Callable[..., Any]:
        """The op that torch.library makes, with a kernel and nothing else."""
        self._library = torch.library.Library("tefl_bench", "FRAGMENT")
        self._library.define(f"nothing{SCHEMA}")
        for key in ("CPU", "CUDA"):
            self._library.impl("nothing", self.forward, key)
        return torch.ops.tefl_bench.nothing

    def custom_op(self) -> Callable[..., Any]:
        """The same by torch.library.custom_op."""

        def function(
            input: Tensor, weight: Tensor, eps: float = 1e-5, *, zero_centered_gamma: bool = False,
            out_dtype: torch.dtype | None = None,
        ) -> tuple[Tensor, Tensor]:  # fmt: skip
            return self.forward(input, weight, eps)

        function.__annotations__ = {
            "input": Tensor, "weight": Tensor, "eps": float, "zero_centered_gamma": bool,
            "out_dtype": torch.dtype | None, "return": tuple[Tensor, Tensor],
        }  # fmt: skip
        return torch.library.custom_op("tefl_bench::nothing_custom", function, mutates_args=())

    def function(self) -> Callable[..., Any]:
        """The same by a torch.autograd.Function, written by hand."""
        forward_of, backward_of = self.forward, self.backward

        class RMSNorm(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, input: Tensor, weight: Tensor, eps: float, zero_centered: bool) -> Any:
                out, rsigma = forward_of(
                    input, weight, eps, zero_centered_gamma=zero_centered, out_dtype=None
                )
                ctx.save_for_backward(input, rsigma, weight)
                ctx.zero_centered = zero_centered
                ctx.mark_non_differentiable(rsigma)
                return out, rsigma

            @staticmethod
            def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
                input, rsigma, weight = ctx.saved_tensors
                dinput, dweight = backward_of(
                    grad, input, rsigma, weight, zero_centered_gamma=ctx.zero_centered
                )
                return dinput, dweight, None, None

        return lambda x, weight: RMSNorm.apply(x, weight, 1e-5, False)


def dispatch_cases(x: Tensor, weight: Tensor, nothing: Nothing) -> Iterator[Case]:
    """Ratios of calls whose implementation does nothing."""
    routed, bare, function = torch.ops.tefl.rmsnorm_fwd, nothing.bare(), nothing.function()
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    grad = torch.ones_like(x)

    def gradients(op: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(op(*leaves)[0], leaves, grad)

    plain = lambda: routed(x, weight)  # noqa: E731
    yield Case("routed / bare Library.impl", plain, lambda: bare(x, weight), 1.0)
    yield Case(
        "routed, grad recorded / bare Library.impl", lambda: routed(*leaves), lambda: bare(x, weight), 1.5
    )
    yield Case("forward and backward / autograd.Function", gradients(routed), gradients(function), 0.9)
    yield Case("inside a policy_context / outside", plain, plain, 1.1, around_subject=a_context)
    yield Case(
        "1000 implementations / 10", plain, plain, 1.1, lambda: more(nothing, 1000), lambda: more(nothing, 10)
    )
    yield Case("after recording / never recorded", plain, plain, 1.1, recorded_before)
    yield Case("routed / torch.add", plain, lambda: torch.add(x, x))
    yield Case("while recording / not", plain, plain, None, tefl.record)
    custom = nothing.custom_op()
    yield Case(
        "torch.library.custom_op / bare Library.impl", lambda: custom(x, weight), lambda: bare(x, weight)
    )
    call = tefl.get_manager().call
    yield Case("manager.call / routed", lambda: call("rmsnorm_fwd", x, weight), plain)


def kernel_cases(x: Tensor, weight: Tensor) -> Iterator[Case]:
    """Ratios of calls that compute: on a GPU with each of the implementations, else with what is chosen."""
    if not x.is_cuda:
        yield from norm_cases(x, weight, "rmsnorm_fwd", None, None)
        return
    block = DecodeBlock()
    for name, prefer in {"Triton": "flagos", "CUDA C++": "vendor"}.items():
        tefl.set_global_policy(tefl.SelectionPolicy(prefer=prefer))
        yield from norm_cases(x, weight, f"rmsnorm_fwd, {name}", 0.95, 1.2)
        yield block_case(block, f"decode block, {name}", 1.05)


def norm_cases(
    x: Tensor, weight: Tensor, name: str, goal: float | None, goal_with_grad: float | None
) -> Iterator[Case]:
    """The op beside torch's own: alone, with a graph recorded, with the backward run."""
    leaves, grad = (x.clone().requires_grad_(), weight.clone().requires_grad_()), torch.ones_like(x)
    ours, theirs = (lambda x, weight: torch.ops.tefl.rmsnorm_fwd(x, weight)[0]), torch_norm

    def gradients(op: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(op(*leaves), leaves, grad)

    yield Case(f"{name} / F.rms_norm", lambda: ours(x, weight), lambda: theirs(x, weight), goal)
    yield Case(
        f"{name}, with grad / F.rms_norm with grad",
        lambda: ours(*leaves),
        lambda: theirs(*leaves),
        goal_with_grad,
    )
    yield Case(f"{name} and backward / F.rms_norm and backward", gradients(ours), gradients(theirs))


def block_case(block: DecodeBlock, name: str, goal: float) -> Case:
    """One token through a transformer block, with our norm and with torch's."""
    x = torch.randn(1, HIDDEN, device="cuda", dtype=torch.bfloat16)
    ours = lambda x, weight: torch.ops.tefl.rmsnorm_fwd(x, weight)[0]  # noqa: E731
    return Case(
        f"{name} / with F.rms_norm, to the end", lambda: block(x, ours), lambda: block(x, torch_norm), goal,
        to_the_end=True,
    )  # fmt: skip


def torch_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def a_context() -> contextlib.AbstractContextManager[Any]:
    """A policy that chooses as the default one does, so that nothing differs but the context."""
    return tefl.policy_context(tefl.SelectionPolicy(prefer="vendor"))


@contextlib.contextmanager
def recorded_before() -> Iterator[None]:
    """Calls have been counted, and are no more."""
    with tefl.record():
        pass
    yield


@contextlib.contextmanager
def more(nothing: Nothing, count: int) -> Iterator[None]:
    """So many implementations in place of one."""
    registry = tefl.get_registry()
    registry.unregister("vendor.nothing0000")
    nothing.register(count=count)
    yield
    with registry.transaction():
        for i in range(count):
            registry.unregister(f"vendor.nothing{i:04}")
        nothing.register()


# ------------------------------------------------------------------------------------- running --


def run(device: str, rounds: int) -> list[Figure]:
    """Every case on that device."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x, weight = (
        torch.randn(ROWS, COLUMNS, device=device, dtype=dtype),
        torch.ones(COLUMNS, device=device, dtype=dtype),
    )
    results = Results(x, weight)
    figures = []

    def measure(cases: Iterator[Case]) -> None:
        for case in cases:
            figures.append(median_of_rounds(case, results, rounds))
            show(figures[-1])

    measure(kernel_cases(x, weight))
    nothing = Nothing(results)
    nothing.register()
    tefl.set_global_policy(tefl.SelectionPolicy(prefer="vendor"))
    measure(dispatch_cases(x, weight, nothing))
    return figures


def show(figure: Figure) -> None:
    """One line."""
    goal = "" if figure.goal is None else f"  goal {figure.goal:.2f} {'ok' if figure.holds else 'MISSED'}"
    times = f"{figure.subject_us:7.2f} us / {figure.baseline_us:7.2f} us"
    print(
        f"{figure.name:48} {figure.ratio:5.2f} [{figure.low:.2f}, {figure.high:.2f}]  {times}{goal}",
        flush=True,
    )


def machine(device: str) -> str:
    """A name for the results' file: the GPU's, or the processor's kind and the number of cores."""
    if device == "cuda":
        return torch.cuda.get_device_name().lower().replace(" ", "-")
    return f"cpu-{platform.machine()}-{len(os.sched_getaffinity(0))}-cores".replace("_", "-")


def main() -> int:
    """Print the figures, and write them down where asked. 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=41, help="of each function (default: 41)")
    parser.add_argument("--json", type=Path, help="folder to write overhead-<machine>-<date>.json to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = run(options.device, options.rounds)
    if options.json is not None:
        date = now()
        facts = {
            "machine": machine(options.device), "date": date, "device": options.device,
            "tefl": tefl.__version__, **versions(),
            "native": tefl.dispatch.native.is_attached(), "shape": [ROWS, COLUMNS], "rounds": options.rounds,
            "figures": [vars(figure) for figure in figures],
        }  # fmt: skip
        path = options.json / f"overhead-{facts['machine']}-{date[:10]}.json"
        path.write_text(json.dumps(facts, indent=1) + "\n")
        print(path)
    return 1 if any(figure.holds is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
