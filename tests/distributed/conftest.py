"""What the tests of collectives share: providers to run them on, and worlds of several ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ..conftest import locked

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

# Helper modules of this folder, for the tests here and for the processes they start.
sys.path.insert(0, str(HERE))

from ranks import checks_of, compiled, environment  # noqa: E402

Failures = dict[str, list[str]]
World = Callable[..., Failures]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `check` runs once for each check of the modules that its file names in MODULES."""
    if "check" in metafunc.fixturenames:
        metafunc.parametrize("check", [name for m in metafunc.module.MODULES for name in checks_of(m)])


@pytest.fixture(scope="session")
def maca_library(shared_folder: Path) -> Path:
    """The example provider's library, whose collectives are its own; built once a test run."""
    library = shared_folder / "libmaca.so"
    with locked(shared_folder / "libmaca.lock"):
        if not library.exists():
            _build(library)
    return library


def _build(library: Path) -> None:
    source = ROOT / "examples" / "maca_provider" / "src"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    files = [str(file) for file in sorted(source.glob("*.cpp"))]
    unfinished = library.with_suffix(".part")
    command = [
        "g++",
        *flags,
        f"-I{ROOT / 'csrc' / 'include'}",
        "-o",
        str(unfinished),
        *files,
        "-lpthread",
        "-lrt",
    ]
    subprocess.run(command, check=True)
    unfinished.rename(library)


@pytest.fixture(scope="session")
def wrong_library(maca_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example provider with a collective that computes wrongly; its all_reduce, as AVG, unless told."""
    flags = ("-shared", "-fPIC", f"-DLIBRARY={json.dumps(str(maca_library))}")
    return Path(compiled("wrong_collectives.c", tmp_path_factory.mktemp("wrong") / "libwrong.so", *flags))


@pytest.fixture(scope="session")
def sim_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels for sim, of which "gate" holds a stream until a flag is set."""
    library = tmp_path_factory.mktemp("kernels") / "sim_kernels.so"
    source = ROOT / "tests" / "privateuse1" / "sim_kernels.c"
    includes = [f"-I{ROOT / 'csrc' / 'include'}", f"-I{ROOT / 'csrc' / 'providers' / 'sim'}"]
    subprocess.run(["gcc", "-shared", "-fPIC", *includes, "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture(scope="session")
def providers(request: pytest.FixtureRequest, maca_library: Path) -> dict[str, str]:
    """What is beneath the process group -> the provider to claim."""
    table = str(request.config.getoption("--ccl") or maca_library)
    return {"gloo": "sim", "table": table, "nccl": "cuda"}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run a module's checks in worlds of `sizes` ranks; return name -> what each rank that failed says."""

    def run(module: str, provider: str, *sizes: int, **variables: str) -> Failures:
        out = tmp_path_factory.mktemp(module)
        arguments = [module, "--sizes", *map(str, sizes), "--provider", provider, "--out", str(out)]
        command = [sys.executable, str(HERE / "world.py"), *arguments]
        done = subprocess.run(
            command, env=environment(**variables), capture_output=True, text=True, timeout=300
        )
        failures: Failures = {}
        for file in [out / str(world) / f"{rank}.json" for world, n in enumerate(sizes) for rank in range(n)]:
            assert file.exists(), done.stdout + done.stderr
            for name, text in json.loads(file.read_text()).items():
                failures.setdefault(name, [])
                if text:
                    failures[name].append(f"world {file.parent.name}, rank {file.stem}: {text}")
        assert done.returncode == 0, done.stdout + done.stderr
        return failures

    return run


@pytest.fixture(scope="module", params=["gloo", "table"])
def failures(
    request: pytest.FixtureRequest, world: World, providers: dict[str, str], sim_kernels: Path
) -> Failures:
    """Run the checks of the test file's MODULES in worlds of its RANKS: over gloo and over a CCL table, or
    over what the file asks for."""
    beneath, ranks = request.param, request.module.RANKS
    has_gpu = request.config.getoption("--provider") == "cuda" and torch.cuda.is_available()
    if beneath == "nccl" and not has_gpu:
        pytest.skip("needs an NVIDIA GPU and --provider cuda")
    found: Failures = {}
    for module in request.module.MODULES:
        variables = {"BENEATH": beneath, "SIM_KERNELS": str(sim_kernels)}
        sizes = ranks[module] if isinstance(ranks, dict) else (ranks,)
        found |= world(module, providers[beneath], *sizes, **variables)
    return found
