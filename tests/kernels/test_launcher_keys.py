"""What compiled code may rely on of an argument, and how the launcher counts what Triton adds to it."""

from __future__ import annotations

import pytest
import torch

from tefl.kernels.launcher import TritonKernel, scratch_pointers, specialise

ALIGNED = torch.empty(64, dtype=torch.bfloat16)

PTX = """
.version 8.6
.visible .entry other(
    .param .u64 other_param_0
)
.visible .entry kernel(
    .param .u64 .ptr .global .align 1 kernel_param_0,
    .param .u32 kernel_param_1,
    .param .f32 kernel_param_2,
    .param .u64 .ptr .global .align 1 kernel_param_3,
    .param .u64 .ptr .global .align 1 kernel_param_4
)
{ ld.param.b64 %rd1, [kernel_param_0]; }
"""


def test_a_tensor_is_known_by_its_dtype_and_whether_it_is_aligned_to_16_bytes() -> None:
    assert specialise(ALIGNED) == ("*bf16", True)
    assert specialise(ALIGNED[1:]) == ("*bf16", False)
    assert specialise(ALIGNED[8:]) == ("*bf16", True)
    assert specialise(ALIGNED.float()) == ("*fp32", True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ("constexpr", None)),
        (1, ("constexpr", 1)),
        (0, ("i32", True)),
        (48, ("i32", True)),
        (50, ("i32", False)),
        (-7, ("i32", False)),
        (2**31 - 1, ("i32", False)),
        (2**31, ("i64", True)),
        (-(2**31), ("i32", True)),
        (1.0, ("fp32", False)),
    ],
    ids=str,
)
def test_a_number_is_known_by_its_type_and_divisibility(value: object, expected: object) -> None:
    assert specialise(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(1, ("i32", False)), (48, ("i32", False)), (2**40, ("i64", False))]
)
def test_of_a_parameter_that_is_not_to_be_specialised_only_the_type_is_known(
    value: int, expected: object
) -> None:
    assert specialise(value, by_value=False) == expected


@pytest.mark.parametrize("value", [True, "text", [1]])
def test_other_arguments_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match=type(value).__name__ if value is not True else "must be a constexpr"):
        specialise(value)


@pytest.mark.parametrize(("own", "extra"), [(5, 0), (4, 1), (3, 2), (2, None), (6, None)])
def test_scratch_pointers_are_the_parameters_that_are_not_ours(own: int, extra: int | None) -> None:
    assert scratch_pointers(PTX, "kernel", own) == extra


def test_a_kernel_that_its_ptx_does_not_name_has_unknown_scratch_pointers() -> None:
    assert scratch_pointers(PTX, "kern", 5) is None
    assert scratch_pointers("", "kernel", 5) is None


def test_without_a_gpu_a_triton_kernel_says_what_it_needs() -> None:
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    if torch.cuda.is_available():
        pytest.skip("says so only where there is no GPU")
    from tefl.kernels.triton.ops import norm

    with pytest.raises(RuntimeError, match="need an NVIDIA GPU; TRITON_INTERPRET=1"):
        norm.rmsnorm_fwd(torch.ones(2, 8), torch.ones(8))


@pytest.fixture
def reduce(monkeypatch: pytest.MonkeyPatch) -> TritonKernel:
    """The kernel of six arguments and two constexprs; nothing is compiled."""
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    from tefl.kernels import launcher
    from tefl.kernels.triton.ops import norm

    monkeypatch.setattr(launcher, "_arch", lambda index: 90)
    monkeypatch.setattr(launcher, "compile_triton", lambda *_: pytest.fail("was compiled"))
    return TritonKernel(norm._reduce)


ROW = torch.empty(64)
SIX = "dweight_partial, dweight, dbias_partial, dbias, partials, columns"


@pytest.mark.parametrize(
    ("args", "constexprs", "says"),
    [
        ((ROW, ROW, None, None, 4), {}, rf" takes 6 arguments \({SIX}\), got 5"),
        ((ROW, ROW, None, None, 4, 64, 64, 32), {}, rf" takes 6 arguments \({SIX}\), got 8"),
        ((), {}, " takes 6 arguments .*, got 0"),
        ((ROW, ROW, None, None, 4, 64), {"ROWS": None}, " takes constexprs COLUMNS, ROWS, got COLUMNS$"),
        (
            (ROW, ROW, None, None, 4, 64),
            {"SIZE": 4},
            " takes constexprs .*, got COLUMNS, ROWS, SIZE",
        ),
        ((4, ROW, None, None, 4, 64), {}, ": the first argument must be a tensor, .* got int"),
        ((None, ROW, None, None, 4, 64), {}, ": the first argument must be a tensor, .* got NoneType"),
        (
            (ROW, ROW.to(torch.complex64), None, None, 4, 64),
            {},
            ": a Triton kernel takes tensors of float16, .*, got complex64",
        ),
        ((ROW, ROW, None, None, "4", 64), {}, ": a Triton kernel takes tensors, ints, .* got str"),
    ],
)
def test_arguments_that_a_kernel_does_not_take_are_refused_by_its_name(
    reduce: TritonKernel, args: tuple, constexprs: dict, says: str
) -> None:
    given = {"ROWS": 64, "COLUMNS": 32} | constexprs
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(TypeError, match=f"^Triton kernel '_reduce'{says}"):
        reduce((2,), *args, num_warps=4, **given)


def test_so_are_those_of_a_launch_in_a_recipe(reduce: TritonKernel) -> None:
    options = {"num_warps": 4, "ROWS": 64, "COLUMNS": 32}
    with pytest.raises(TypeError, match=r"Triton kernel '_reduce' takes 6 arguments .*, got 1"):
        reduce.ready(torch.device("cuda", 0), ROW, **options)
    with pytest.raises(TypeError, match=r"Triton kernel '_reduce': .*, got complex128"):
        reduce.ready(torch.device("cuda", 0), ROW.cdouble(), ROW, None, None, 4, 64, **options)


def test_a_kernel_is_compiled_once_for_each_kind_of_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that meet on a new kind compile it once; values that share a kind share the kernel."""
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    from concurrent.futures import ThreadPoolExecutor

    from tefl.kernels import launcher
    from tefl.kernels.triton.ops import norm

    compiled: list[object] = []
    launched: list[object] = []
    monkeypatch.setattr(launcher, "_arch", lambda index: 90)
    monkeypatch.setattr(launcher, "compile_triton", lambda *args: compiled.append(args))
    monkeypatch.setattr(launcher, "_launchable", lambda *_: lambda grid, args: launched.append(args[5]))
    kernel = TritonKernel(norm._reduce)
    partial, out = torch.empty(4, 64), torch.empty(64)

    def launch(columns: int) -> None:
        kernel((2,), partial, out, None, None, 4, columns, ROWS=64, COLUMNS=32, num_warps=4)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(launch, [64, 32, 96, 64, 160, 64, 32, 48]))
    assert sorted(launched) == [32, 32, 48, 64, 64, 64, 96, 160]
    assert len(compiled) == 1
    launch(33)
    assert len(compiled) == 2
