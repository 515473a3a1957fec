"""Every Triton kernel compiles to machine code for every architecture and dtype, with no GPU there.

Each compiled kernel must be one that the launcher itself can start, with the parameters that are expected.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")

from tefl.kernels.launcher import Specialisation, TritonKernel, _launchable, compile_triton  # noqa: E402
from tefl.kernels.triton import _utils  # noqa: E402
from tefl.kernels.triton.ops import norm  # noqa: E402

LETTERS = {"i32": "i", "fp32": "f"}
ARCHES = (80, 90)
DTYPES = ("*bf16", "*fp16", "*fp32")
NOTHING: Specialisation = ("constexpr", None)
STATISTIC: Specialisation = ("*fp32", True)
NUMBER: Specialisation = ("fp32", False)
Kind = tuple[list[Specialisation], dict[str, Any]]
KERNELS = {name: kernel for name, kernel in vars(norm).items() if isinstance(kernel, TritonKernel)}


def forward(dtype: str, layer: bool, add: bool, columns: int) -> Kind:
    tensor, size = (dtype, True), ("i32", columns % 16 == 0)
    tile = _utils.norm_forward_tile(columns)
    arguments = [
        tensor, tensor if add else NOTHING, tensor, tensor if layer else NOTHING, tensor,
        tensor if add else NOTHING, STATISTIC if layer else NOTHING, STATISTIC,
        ("i32", False), size, size, size, NUMBER,
    ]  # fmt: skip
    return arguments, shape(tile, layer) | {"OFFSET": 1.0}


def backward(dtype: str, layer: bool, add: bool, columns: int, *, loop: bool) -> Kind:
    tensor, size = (dtype, True), ("i32", columns % 16 == 0)
    arguments = [
        tensor, tensor, tensor if add else NOTHING, STATISTIC if layer else NOTHING, STATISTIC,
        tensor, tensor, *([] if loop else [STATISTIC, STATISTIC if layer else NOTHING]),
        ("i32", False), size, size, size, size,
    ]  # fmt: skip
    return arguments, shape(_utils.norm_backward_tile(columns), layer) | {"OFFSET": 0.0}


def weight_gradients(dtype: str, layer: bool, columns: int) -> Kind:
    tensor, size = (dtype, True), ("i32", columns % 16 == 0)
    statistic = STATISTIC if layer else NOTHING
    arguments = [tensor, tensor, statistic, STATISTIC, STATISTIC, statistic, ("i32", False), size, size, size]
    return arguments, shape(_utils.norm_backward_tile(columns), layer)


def reduce(dtype: str, layer: bool) -> Kind:
    bias = [STATISTIC, (dtype, True)] if layer else [NOTHING, NOTHING]
    arguments = [STATISTIC, (dtype, True), *bias, ("i32", False), ("i32", True)]
    return arguments, {"ROWS": 64, "COLUMNS": 32, "num_warps": 4}


def shape(tile: _utils.Tile, layer: bool) -> dict[str, Any]:
    return {"LAYER": layer, "ROWS": tile.rows, "COLUMNS": tile.columns, "num_warps": tile.num_warps}


def kernels(dtype: str) -> dict[str, list[Kind]]:
    """For each kernel of the module, the kinds of arguments that its callers launch it with."""
    forms = [(True, False), (False, False), (False, True)]  # LayerNorm, RMSNorm, RMSNorm with an addition
    return {
        "_FORWARD": [forward(dtype, *form, n) for form, n in product(forms, (1023, 8192))],
        "_FORWARD_LOOP": [forward(dtype, *form, 33000) for form in forms],
        "_BACKWARD": [backward(dtype, *form, n, loop=False) for form, n in product(forms, (1023, 8192))],
        "_BACKWARD_LOOP": [backward(dtype, *form, 16384, loop=True) for form in forms[::2]],
        "_WEIGHT_GRADIENTS": [weight_gradients(dtype, layer, 16384) for layer in (True, False)],
        "_REDUCE": [reduce(dtype, layer) for layer in (True, False)],
    }


def test_every_kernel_of_the_module_is_among_those_compiled_here() -> None:
    assert set(KERNELS) == set(kernels("*bf16"))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_compiles(name: str, dtype: str, arch: int) -> None:
    for arguments, constexprs in kernels(dtype)[name]:
        options = dict(constexprs)
        num_warps = options.pop("num_warps")
        compiled = compile_triton(KERNELS[name].function, arguments, options, arch, num_warps)
        assert compiled.asm["cubin"].startswith(b"\x7fELF")
        assert f".target sm_{arch}" in compiled.asm["ptx"]
        launchable = _launchable(compiled, arguments)
        assert launchable is not None
        assert launchable.threads == 32 * num_warps
        assert launchable.kernel.signature.rstrip("0") == "".join(
            LETTERS.get(kind, "p") for kind, _ in arguments if kind != "constexpr"
        )


@pytest.mark.parametrize(
    "unknown",
    [
        {"global_scratch_size": 64},
        {"profile_scratch_size": 64},
        {"num_ctas": 2},
        {"launch_pdl": True},
        {"name": "x"},
    ],
    ids=str,
)
def test_what_the_launcher_does_not_know_is_left_to_triton(unknown: dict[str, Any]) -> None:
    arguments, constexprs = reduce("*bf16", False)
    options = dict(constexprs)
    compiled = compile_triton(KERNELS["_REDUCE"].function, arguments, options, 90, options.pop("num_warps"))
    changed = SimpleNamespace(asm=compiled.asm, metadata=compiled.metadata._replace(**unknown))
    assert _launchable(changed, arguments) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_multiple_of_16_columns_are_read_in_16_byte_vectors(dtype: str) -> None:
    arguments, constexprs = forward(dtype, False, False, 4096)
    options = dict(constexprs)
    num_warps = options.pop("num_warps")
    ptx = compile_triton(KERNELS["_FORWARD"].function, arguments, options, 90, num_warps).asm["ptx"]
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx
