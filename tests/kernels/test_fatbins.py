"""The machine code that the build makes of csrc/kernels has the kernels, as they are launched."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch

from tefl import _native
from tefl.kernels.cuda import norm, table

LAYOUTS = ("n1", "n2", "n4", "loop", "scalar")
TYPES = ("bf16_bf16", "bf16_f32", "f16_f16", "f16_f32", "f32_f32")


def names(part: str) -> set[str]:
    ops = [op for op in norm._SIGNATURES if part in op]
    return {f"tefl_{op}_{types}_{layout}" for op, types, layout in product(ops, TYPES, LAYOUTS)}


EXPECTED = {
    "rmsnorm": names("rmsnorm"),
    "layernorm": names("layernorm"),
    "norm_reduce": {f"tefl_norm_reduce_{dtype}" for dtype in ("bf16", "f16", "f32")},
}
PARAMETERS = {"p": "u64", "l": "u64", "f": "f32"}


@pytest.fixture(scope="module")
def cuobjdump() -> str:
    facts = _native.build_facts() or {"cuda_skipped": "tefl's compiled part was not built"}
    if reason := facts.get("cuda_skipped"):
        pytest.skip(f"no CUDA kernels were built: {reason}")
    if found := shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin"):
        return found
    # The toolkit's compiler may be installed without its tools; Triton's package carries one.
    triton = pytest.importorskip(
        "triton", reason="neither the CUDA toolkit's cuobjdump nor Triton's is there"
    )
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump")


def dump(tool: str, option: str, file: Path) -> str:
    return subprocess.run([tool, option, str(file)], capture_output=True, text=True, check=True).stdout


def test_each_source_file_is_built() -> None:
    if not table._FATBINS.is_dir():
        pytest.skip("no CUDA kernels were built")
    assert {file.stem for file in table._FATBINS.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_machine_code_for_each_architecture_has_every_kernel_and_none_spills(
    cuobjdump: str, name: str
) -> None:
    text = dump(cuobjdump, "--dump-resource-usage", table._FATBINS / f"{name}.fatbin")
    by_arch: dict[str, set[str]] = {}
    arch = ""
    for line in text.splitlines():
        if found := re.search(r"arch = (sm_\d+)", line):
            arch = found[1]
        if found := re.search(r"Function (tefl_\w+):", line):
            by_arch.setdefault(arch, set()).add(found[1])
    assert by_arch == {"sm_80": EXPECTED[name], "sm_90": EXPECTED[name]}
    assert set(re.findall(r"STACK:(\d+)", text)) == {"0"}
    assert set(re.findall(r"LOCAL:(\d+)", text)) == {"0"}


@pytest.mark.parametrize("name", EXPECTED)
def test_kernels_take_the_parameters_that_they_are_launched_with(cuobjdump: str, name: str) -> None:
    ptx = dump(cuobjdump, "--dump-ptx", table._FATBINS / f"{name}.fatbin")
    assert ".target sm_90" in ptx  # for architectures to come
    found = {}
    for kernel, parameters in re.findall(r"\.entry (tefl_\w+)\((.*?)\)", ptx, re.DOTALL):
        found[kernel] = re.findall(r"\.param \.(\w+)", parameters)
    assert set(found) == EXPECTED[name]
    for kernel, types in found.items():
        op = next((op for op in norm._SIGNATURES if kernel.startswith(f"tefl_{op}_")), None)
        signature = norm._SIGNATURES[op] if op else norm._reduce_kernel(torch.float32).signature
        assert types == [PARAMETERS[letter] for letter in signature], kernel
