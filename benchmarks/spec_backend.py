"""What selecting a kernel backend changes: the bits of results, the time of a call, the time of the import.

    python benchmarks/spec_backend.py OUT [--backend acme] [--rounds 7]

Writes OUT/spec-<backend>-<machine>-<date>.json. The norm kernels run in processes of their own, for trunk
alone and for the backend in turn. On a GPU they are compared and timed; without one Triton's interpreter runs
them, and only their bits are compared and the import timed. A backend that is not installed is taken
from ``examples``, built by pip into a temporary folder, which needs no network. Only ratios mean something.
The exit status is 1 where results are further apart than `ROUNDING` allows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

SHAPES = ((1, 1), (7, 64), (5, 300), (33, 1024), (64, 1100), (5, 5120), (3, 40000))
INTERPRETED = SHAPES[:3]  # the others take the interpreter minutes
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TIMED = ((8192, 2048), (8192, 8192))
ROUNDING = 4.0
"""Units in the last place of the largest value that results may be apart: a tile of another shape may add in
another order."""


# --- in a process with one backend --------------------------------------------------------------------------


def import_ms() -> float:
    """Of the kernels, in milliseconds of CPU time; torch and Triton are there already."""
    import triton
    import triton.language  # noqa: F401

    import tefl

    start = time.process_time()
    import tefl.kernels.triton.ops.norm  # noqa: F401

    return 1e3 * (time.process_time() - start)


def calls(device: str) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """(case, op, arguments): the same in every process, whatever the device."""
    for seed, (rows, columns) in enumerate(SHAPES if device == "cuda" else INTERPRETED):
        for dtype in DTYPES:
            generator = torch.Generator().manual_seed(seed)
            x, grad, residual, w, b = (
                torch.randn(*shape, generator=generator).to(dtype).to(device)
                for shape in (*[(rows, columns)] * 3, *[(columns,)] * 2)
            )
            mean = x.float().mean(-1)
            rstd = (x.float().square().mean(-1) + 1e-5).rsqrt()
            for op, args in {
                "layernorm_fwd": (x, w, b),
                "layernorm_bwd": (grad, x, mean, rstd, w),
                "rmsnorm_fwd": (x, w),
                "rmsnorm_bwd": (grad, x, rstd, w),
                "rmsnorm_bwd_add": (grad, x, residual, rstd, w),
                "add_rmsnorm_fwd": (x, residual, w),
                "add_rmsnorm_bwd": (grad, residual, x, rstd, w),
            }.items():
                yield f"{op} {rows}x{columns} {str(dtype).removeprefix('torch.')}", op, args


def results(device: str) -> dict[str, list[torch.Tensor]]:
    """Of every call, on the host."""
    from tefl.kernels.triton.ops import norm

    return {case: [r.cpu() for r in getattr(norm, op)(*args)] for case, op, args in calls(device)}


def gpu_times() -> dict[str, float]:
    """Microseconds: of the host for a small call, and of the GPU for large ones."""
    from benchmarks import gpu_timing
    from tefl.kernels.triton.ops import norm

    x = torch.randn(16, 64, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(64, device="cuda", dtype=torch.bfloat16)
    out, rsigma = norm.rmsnorm_fwd(x, weight)
    times = {
        "host, rmsnorm_fwd 16x64": gpu_timing.host_us(lambda: norm.rmsnorm_fwd(x, weight), 9, 500),
        "host, rmsnorm_bwd 16x64": gpu_timing.host_us(
            lambda: norm.rmsnorm_bwd(out, x, rsigma, weight), 9, 500
        ),
    }
    for rows, columns in TIMED:
        for name, run in {"fwd": gpu_timing.forward(norm), "bwd": gpu_timing.backward(norm)}.items():
            times[f"gpu, rmsnorm_{name} {rows}x{columns}"] = gpu_timing.microseconds(run, rows, columns)
    return times


def work(what: str, file: Path) -> None:
    """One part, its result into a file."""
    from tefl.kernels.spec import describe

    part: Any = {
        "import": import_ms,
        "times": gpu_times,
        "results": lambda: results("cuda" if torch.cuda.is_available() else "cpu"),
    }[what]()
    torch.save((describe(), part), file)


# --- both, side by side -------------------------------------------------------------------------------------


class Sides:
    """Runs a part in a fresh process for trunk alone and for the backend."""

    def __init__(self, backend: str, site: Path) -> None:
        self.backend, self._site = backend, site
        self.provenance: dict[str, str | None] = {}

    def run(self, what: str) -> tuple[Any, Any]:
        """(trunk's, the backend's)"""
        return self._one(what, "none"), self._one(what, self.backend)

    def _one(self, what: str, backend: str) -> Any:
        path = os.pathsep.join(filter(None, [str(self._site), str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "TEFL_KERNEL_BACKEND": backend}
        env |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPYCACHEPREFIX": str(self._site / "bytecode")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
        if not torch.cuda.is_available():
            env["TRITON_INTERPRET"] = "1"
        file = self._site / "result"
        subprocess.run([sys.executable, __file__, "--work", what, str(file)], env=env, check=True)
        self.provenance[backend], part = torch.load(file, weights_only=False)
        return part


def install(backend: str, site: Path) -> None:
    """Have the backend found: installed already, or an example, built into ``site``."""
    if any(entry.name == backend for entry in entry_points(group="tefl.kernel_specs")):
        return
    example = ROOT / "examples" / f"{backend}_kernels"
    if not example.is_dir():
        raise SystemExit(f"kernel backend {backend!r} is neither installed nor at {example}")
    source = shutil.copytree(example, site / "source")  # pip builds inside the folder that it is given
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True)


def compared(trunk: dict[str, list[torch.Tensor]], other: dict[str, list[torch.Tensor]]) -> dict[str, Any]:
    """How many results have the same bits, and the others with how far they are apart."""
    apart, count = [], 0
    for case, ours in trunk.items():
        for place, (one, two) in enumerate(zip(ours, other[case], strict=True)):
            count += 1
            if torch.equal(*(t.contiguous().view(-1).view(torch.uint8) for t in (one, two))):
                continue
            info = torch.finfo(one.dtype)
            size = max(one.double().abs().max().item(), info.tiny) * info.eps
            units = (one.double() - two.double()).abs().max().item() / size
            apart.append({"case": case, "result": place, "units_in_the_last_place": units})
    return {"results": count, "same_bits": count - len(apart), "apart": apart}


def is_rounding(bits: dict[str, Any]) -> bool:
    """Whether results that differ do so by no more than `ROUNDING`; what is no number does not."""
    return all(one["units_in_the_last_place"] <= ROUNDING for one in bits["apart"])


def ratios(rounds: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Of the backend's times to trunk's, by what was timed: each side's best process, and both times."""

    def figure(name: str) -> dict[str, float]:
        trunk, ours = (min(pair[side][name] for pair in rounds) for side in (0, 1))
        return {"ratio": ours / trunk, "trunk_us": trunk, "backend_us": ours}

    return {name: figure(name) for name in rounds[0][0]}


def measure(backend: str, rounds: int) -> dict[str, Any]:
    """Everything, as it is written to the file."""
    import triton

    import tefl
    from benchmarks.facts import now, versions

    with tempfile.TemporaryDirectory() as site:
        install(backend, Path(site))
        sides = Sides(backend, Path(site))
        sides.run("import")  # compiles
        imports = [sides.run("import") for _ in range(3 * rounds)]
        bits = compared(*sides.run("results"))
        times = ratios([sides.run("times") for _ in range(rounds)]) if torch.cuda.is_available() else {}
    return {
        "date": now(),
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "interpreted": not torch.cuda.is_available(),
        "versions": {
            "tefl": tefl.__version__,
            "triton": triton.__version__,
            **versions(),
        },
        "backend": sides.provenance[backend],
        "rounds": rounds,
        "import_ms": {
            "trunk": statistics.median(a for a, _ in imports),
            "backend": statistics.median(b for _, b in imports),
            "more": statistics.median(b - a for a, b in imports),
        },
        "bits": bits,
        "times": times,
    }


def show(found: dict[str, Any]) -> None:
    """In a few lines."""
    bits, imports = found["bits"], found["import_ms"]
    print(found["backend"])
    print(f"{bits['same_bits']} of {bits['results']} results have the same bits")
    for one in bits["apart"]:
        print(f"  {one['case']}, result {one['result']}: {one['units_in_the_last_place']:.2f} units apart")
    print(f"import: {imports['trunk']:.1f} ms, {imports['more']:+.1f} ms with the backend")
    for name, figure in found["times"].items():
        print(f"{figure['ratio']:.3f}  {name} ({figure['trunk_us']:.1f} us, {figure['backend_us']:.1f} us)")


def main() -> int:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the JSON file")
    parser.add_argument("--backend", default="acme", help="whose kernels are compared with trunk's")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each side that are timed")
    options = parser.parse_args()
    found = measure(options.backend, options.rounds)
    show(found)
    options.out.mkdir(parents=True, exist_ok=True)
    machine = found["machine"].lower().replace(" ", "-")
    path = options.out / f"spec-{options.backend}-{machine}-{found['date'][:10]}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path)
    return 0 if is_rounding(found["bits"]) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main())
