"""What the device's tests share: a fresh interpreter for every claim, and libraries compiled on the spot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
INCLUDE = ROOT / "csrc" / "include"

# Helper modules of this folder, for the tests here and for the interpreters they start.
sys.path.insert(0, str(HERE))


class Interpreter:
    """Runs Python code in a process of its own: a device is claimed once per process and for good."""

    def __call__(self, code: str, *, timeout: float = 120, **environment: str) -> str:
        """Run `code`, which must succeed; return what it printed."""
        done = self.run(code, timeout=timeout, **environment)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def run(self, code: str, *, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `code`; TEFL_* variables of this process are not passed on, `environment` is."""
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=child_environment(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd="/",
        )


class Fork(Interpreter):
    """The same with torch imported already, which saves a second each; see zygote.py."""

    def __init__(self) -> None:
        self._zygote = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            env=child_environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def run(self, code: str, *, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        task = {
            "code": textwrap.dedent(code),
            "environment": child_environment(environment),
            "timeout": timeout,
        }
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        print(json.dumps(task), file=self._zygote.stdin, flush=True)
        answer = json.loads(self._zygote.stdout.readline())
        if answer["code"] == TIMED_OUT:
            raise subprocess.TimeoutExpired("forked code", timeout, answer["stdout"], answer["stderr"])
        return subprocess.CompletedProcess("forked code", answer["code"], answer["stdout"], answer["stderr"])

    def close(self) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        self._zygote.wait()


TIMED_OUT = -1  # zygote.py's


def child_environment(given: dict[str, str]) -> dict[str, str]:
    """Return this process's environment without what would choose a provider or policy, and with `given`."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("TEFL_", "TE_FL_"))}
    defaults = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    return {**inherited, **defaults, **given}


@pytest.fixture(scope="session")
def python() -> Iterator[Interpreter]:
    """Runs code in a process that has torch imported and nothing else."""
    fork = Fork()
    yield fork
    fork.close()


@pytest.fixture(scope="session")
def fresh_python() -> Interpreter:
    """Runs code in a new interpreter."""
    return Interpreter()


@pytest.fixture(scope="session")
def maca() -> ModuleType:
    """Claim sim as `maca`, with two devices, for this process and for good; return torch.maca."""
    import torch
    from tefl.privateuse1 import PrivateUse1Backend, is_registered, register_backend

    if not is_registered():
        register_backend(PrivateUse1Backend("maca", "sim", default_autocast_dtype=torch.bfloat16))
    return torch.get_device_module("maca")


Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """A function (name, C source) -> path of the shared library made of it."""

    def compile_source(name: str, source: str, *flags: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        file, library = folder / f"{name}.c", folder / f"{name}.so"
        file.write_text(source)
        includes = [f"-I{INCLUDE}", f"-I{ROOT / 'csrc' / 'providers' / 'sim'}"]
        subprocess.run(
            ["gcc", "-shared", "-fPIC", *includes, *flags, "-o", str(library), str(file)], check=True
        )
        return library

    return compile_source


class Site:
    """A folder of installed packages: modules and their entry points, as pip would lay them out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, distribution: str, modules: dict[str, str], **groups: dict[str, str]) -> None:
        """Add a package; `groups` are entry points, with "_" for the "." of a group's name."""
        for name, source in modules.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(source))
        info = self.folder / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = []
        for group, points in groups.items():
            lines += [
                f"[{group.replace('_', '.')}]",
                *(f"{name} = {value}" for name, value in points.items()),
            ]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    def install_tefl_hook(self) -> None:
        """Add the hook that tefl's own distribution has, for a source tree that is not installed."""
        self.install("tefl-hook", {}, torch_backends={"tefl": "_tefl_autoload:autoload"})

    def install_provider(self, name: str, library: str, hook: bool = True, body: str = "") -> None:
        """Add a vendor's package with a provider called `name`; `body` runs before the backend is made."""
        module = f"{name}_provider"
        source = f"""
            def backend():
                from tefl.privateuse1 import PrivateUse1Backend
                {body or "pass"}
                return PrivateUse1Backend(name={name!r}, provider={library!r})
            """
        hook_source = f"""
            def autoload():
                from _tefl_autoload import claim
                claim({name!r})
            """
        groups = {"tefl_providers": {name: f"{module}:backend"}}
        if hook:
            groups["torch_backends"] = {name: f"_{module}_autoload:autoload"}
        modules = {module: source, f"_{module}_autoload": hook_source}
        self.install(f"{name}-provider", modules, **groups)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of an interpreter that sees these packages and autoloads backends."""
        path = os.pathsep.join([str(self.folder), str(ROOT), str(HERE)])
        return {"PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1", **more}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder)
