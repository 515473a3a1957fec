"""Build tefl's native parts: the extension module, the built-in providers, the CUDA fatbins.

Environment: DEBUG=1 builds without optimisation and with symbols, TE_FL_SKIP_CUDA=1 leaves the
CUDA kernels out, CUDA_HOME or CUDA_PATH says where nvcc is (else PATH is searched).
"""

import glob
import json
import os
import shutil
import subprocess
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

DEBUG = os.environ.get("DEBUG", "0") == "1"
CXX_FLAGS = ["-Wall", "-Wno-interference-size", "-fvisibility=hidden", *(["-O0", "-g"] if DEBUG else ["-O2"])]
# A PyTorch without torch.distributed has no process groups for the device to be in.
FOLDERS = ["csrc/device", "csrc/dispatch", "csrc/launch"]
if torch.distributed.is_available():
    FOLDERS.append("csrc/ccl")
    CXX_FLAGS.append("-DTEFL_WITH_C10D")
# Machine code for the two architectures we tune for, and PTX so that later ones run too.
NVCC_TARGETS = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_90,code=compute_90",
]


def find_nvcc() -> tuple[str | None, str]:
    """Return nvcc's path and, where there is none, the reason."""
    if os.environ.get("TE_FL_SKIP_CUDA", "0") == "1":
        return None, "TE_FL_SKIP_CUDA=1 was set when tefl was built"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            nvcc = shutil.which("nvcc", path=os.path.join(root, "bin"))
            return nvcc, "" if nvcc else f"{variable}={root} has no bin/nvcc"
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    return nvcc, "" if nvcc else "nvcc was not found on PATH, in CUDA_HOME or in CUDA_PATH"


def together(folder: str) -> str:
    """Return a file that includes a folder's sources: torch's headers, most of the work, are read once."""
    unit = Path("build", "together", f"{Path(folder).name}.cpp")
    text = "".join(f'#include "{path.resolve()}"\n' for path in sorted(Path(folder).glob("*.cpp")))
    unit.parent.mkdir(parents=True, exist_ok=True)
    if not unit.exists() or unit.read_text() != text:
        unit.write_text(text)
    return str(unit)


class Build(BuildExtension):
    """build_ext that also writes the fatbins, the public header and the facts of the build."""

    def run(self) -> None:
        inplace = self.inplace or getattr(self, "editable_mode", False)
        package = Path("tefl") if inplace else Path(self.build_lib, "tefl")
        for folder in ("include", "lib"):
            (package / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy("csrc/include/tefl_provider.h", package / "include")
        facts = {"torch": torch.__version__, "debug": DEBUG, **self.build_fatbins(package)}
        (package / "_build.json").write_text(json.dumps(facts, indent=1) + "\n")
        super().run()

    def build_fatbins(self, package: Path) -> dict[str, str]:
        nvcc, reason = find_nvcc()
        out = package / "kernels" / "cuda" / "fatbin"
        if nvcc is None:
            shutil.rmtree(out, ignore_errors=True)
            self.warn(f"tefl is built without CUDA kernels: {reason}")
            return {"cuda_skipped": reason}
        out.mkdir(parents=True, exist_ok=True)
        newest = max(path.stat().st_mtime for path in Path("csrc/kernels").iterdir())
        for source in sorted(Path("csrc/kernels").glob("*.cu")):
            target = out / f"{source.stem}.fatbin"
            if self.force or not target.exists() or target.stat().st_mtime < newest:
                flags = ["-O3", "-std=c++17", "--fatbin", "--threads", "0", *NVCC_TARGETS]
                subprocess.run([nvcc, *flags, "-o", str(target), str(source)], check=True)
        version = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
        return {"nvcc": version.strip().splitlines()[-1]}


def provider(name: str) -> Extension:
    """Return a built-in provider: a plain shared library, no torch, no Python, only the public header."""
    return Extension(
        f"tefl.lib.tefl_{name}",
        sorted(glob.glob(f"csrc/providers/{name}/*.cpp")),
        include_dirs=[os.path.abspath("csrc/include")],
        extra_compile_args=[*CXX_FLAGS, "-Wextra", "-Werror"],
        libraries=["pthread", "dl"],
        language="c++",
    )


setup(
    ext_modules=[
        CppExtension(
            "tefl._C",
            ["csrc/bindings.cpp", *map(together, FOLDERS)],
            include_dirs=[os.path.abspath("csrc"), os.path.abspath("csrc/include")],
            extra_compile_args=CXX_FLAGS,
            libraries=["dl"],
        ),
        provider("sim"),
        provider("cuda"),
    ],
    cmdclass={"build_ext": Build.with_options(no_python_abi_suffix=True)},
)
