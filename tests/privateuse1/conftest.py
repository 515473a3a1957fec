"""What the device's tests share: a fresh interpreter for every claim, and libraries compiled on the spot."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
INCLUDE = ROOT / "csrc" / "include"

# Helper modules of this folder, for the tests here and for the interpreters they start.
sys.path.insert(0, str(HERE))


class Interpreter:
    """Runs Python code in a process of its own: a device is claimed once per process and for good."""

    def __call__(self, code: str, *, check: bool = True, timeout: float = 120, **environment: str) -> str:
        """Run `code`; return what it printed. With check=False, return stdout and stderr together."""
        done = self.run(code, timeout=timeout, **environment)
        if check:
            assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
            return done.stdout.strip()
        return (done.stdout + done.stderr).strip()

    def run(self, code: str, *, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `code`; TEFL_* variables of this process are not passed on, `environment` is."""
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("TEFL_", "TE_FL_"))
        }
        defaults = {
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
        }
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**inherited, **defaults, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd="/",
        )


@pytest.fixture(scope="session")
def python() -> Interpreter:
    return Interpreter()


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
