"""The CUDA C++ kernels compiled for the host, with the interface of `tefl.kernels.launcher.BinaryKernel`."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from torch import Tensor

ROOT = Path(__file__).parent.parent.parent
SHIM = Path(__file__).with_name("cuda_on_host")
INTEGERS, REALS = 13, 2


def build(source: Path, folder: Path) -> ctypes.CDLL:
    """Compile a .cu file of csrc/kernels with the host's compiler; ``cuda_on_host`` has CUDA's vocabulary."""
    for original in source.parent.glob("*.cu*"):
        text = original.read_text()
        # Dynamic shared memory is an array of unknown size in a scope of its own, which C++ has no word for.
        text = text.replace(
            "extern __shared__ float shared[];", "float* const shared = dynamic_shared.data();"
        )
        (folder / original.name).write_text(text)
    library = folder / f"{source.stem}.so"
    # longjmp between stacks is what _FORTIFY_SOURCE takes for an error.
    flags = ["-std=c++20", "-O1", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", "-w", "-x", "c++", f"-I{SHIM}"]
    subprocess.run(["c++", *flags, "-o", str(library), str(folder / source.name)], check=True)
    return ctypes.CDLL(str(library))


class HostKernel:
    """A kernel of a library that `build` made, run on CPU tensors before the call returns."""

    def __init__(self, library: ctypes.CDLL, name: str, signature: str) -> None:
        self.library, self.name, self.signature = library, name, signature

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        *args: Tensor | float | None,
        shared_bytes: int = 0,
    ) -> None:
        integers = (ctypes.c_int64 * INTEGERS)()
        reals = (ctypes.c_float * REALS)()
        used, used_reals = 0, 0
        for letter, value in zip(self.signature, args, strict=True):
            if letter == "f":
                reals[used_reals] = value
                used_reals += 1
                continue
            integers[used] = value.data_ptr() if isinstance(value, Tensor) else value or 0
            used += 1
        status = self.library.cuda_on_host_run(
            ctypes.cast(getattr(self.library, self.name), ctypes.c_void_p),
            (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3]), (ctypes.c_uint * 3)(*(*block, 1, 1)[:3]),
            ctypes.c_uint(shared_bytes), integers, reals,
        )  # fmt: skip
        if status != 0:
            raise RuntimeError(
                f"{self.name}: " + ("threads did not meet" if status == 1 else f"block {block}")
            )
