"""Processes for tests that claim a device, and folders of packages for them to find.

The processes see the third-party packages of this environment but not their metadata: whatever providers or
plugins happen to be installed here, a test finds only those that it installed in its own `Site`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TIMED_OUT = -1  # zygote.py's

#: The first lines of code that computes on the simulator.
CLAIM = """
import torch
from tefl.privateuse1 import PrivateUse1Backend, fallbacks, register_backend, reset_fallbacks
register_backend(PrivateUse1Backend("maca", "sim", default_autocast_dtype=torch.bfloat16))
close = torch.testing.assert_close
"""

Result = subprocess.CompletedProcess[str]


def link_packages(folder: Path) -> Path:
    """Make `folder` a site-packages without metadata: a link to each package of this environment."""
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            hidden = entry.suffix in (".dist-info", ".egg-info", ".pth") or entry.name.startswith(
                "__editable__"
            )
            if not hidden and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


class Interpreter:
    """Runs Python code in a process of its own: a device is claimed once per process and for good."""

    def __init__(self, packages: Path) -> None:
        self._packages = packages

    def __call__(self, code: str, *, timeout: float = 120, **environment: str) -> str:
        """Run `code`, which must succeed; return what it printed."""
        done = self.run(code, timeout=timeout, **environment)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def run(self, code: str, *, timeout: float = 120, **environment: str) -> Result:
        """Run `code`; TEFL_* variables of this process are not passed on, `environment` is."""
        return self.start(["-c", textwrap.dedent(code)], timeout=timeout, **environment)

    def start(self, arguments: list[str], *, timeout: float = 120, **environment: str) -> Result:
        """Run the interpreter with `arguments`, as `run` does."""
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            env=self.environment(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd="/",
        )

    def environment(self, given: dict[str, str]) -> dict[str, str]:
        """Return this process's environment with `given`, without what would choose a provider or policy."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TEFL_", "TE_FL_"))}
        path = [given.get("PYTHONPATH", ""), str(ROOT), str(HERE), str(self._packages)]
        fixed = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        return {**inherited, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **given, **fixed}


class Fork(Interpreter):
    """The same with torch imported already, which saves a second each; see zygote.py."""

    def __init__(self, packages: Path) -> None:
        super().__init__(packages)
        self._zygote = subprocess.Popen(
            [sys.executable, "-S", str(HERE / "zygote.py")],
            env=self.environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def run(self, code: str, *, timeout: float = 120, **environment: str) -> Result:
        task = {
            "code": textwrap.dedent(code),
            "environment": self.environment(environment),
            "timeout": timeout,
        }
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        print(json.dumps(task), file=self._zygote.stdin, flush=True)
        answer = json.loads(self._zygote.stdout.readline())
        if answer["code"] == TIMED_OUT:
            raise subprocess.TimeoutExpired("forked code", timeout, answer["stdout"], answer["stderr"])
        return Result("forked code", answer["code"], answer["stdout"], answer["stderr"])

    def close(self) -> None:
        """End the process that is forked."""
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        self._zygote.wait()


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
        """Add the hook that tefl's own distribution has."""
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
        return {"PYTHONPATH": str(self.folder), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1", **more}
