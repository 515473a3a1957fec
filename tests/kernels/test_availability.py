"""Why an implementation cannot run somewhere, in words; saying so loads no Triton, FlagGems or CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tefl import _native
from tefl.dispatch.types import BackendImplKind, Facts, OpImpl
from tefl.kernels.cuda import table as cuda
from tefl.kernels.flaggems import table as flaggems
from tefl.kernels.triton import table as triton

from ..conftest import RunPython

GPU = Facts("cuda", 0, (torch.bfloat16, torch.bfloat16), (9, 0))
CPU = Facts("cpu", None, (torch.float32, torch.float32))


def claimed(alias: str) -> Facts:
    return Facts(
        "privateuse1", 0, (torch.float32,) * 2, (9, 0) if alias == "cuda" else None, "acme", alias, "maca"
    )


def impl(table: Any, op: str) -> OpImpl:
    return next(impl for impl in table.implementations() if impl.op_name == op)


@pytest.fixture(autouse=True)
def everything_is_installed_and_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (triton, flaggems):
        monkeypatch.setattr(table, "find_spec", lambda name: object())
    monkeypatch.setattr(_native, "build_facts", lambda: {"torch": torch.__version__, "nvcc": "release 13.0"})
    monkeypatch.setattr(cuda, "_FATBINS", cuda._FATBINS.parent)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("TE_FL_SKIP_CUDA", raising=False)


def test_ids_kinds_and_priorities() -> None:
    found = {
        (i.impl_id, i.kind, i.vendor, i.priority)
        for table in (triton, cuda, flaggems)
        for i in table.implementations()
    }
    assert found == {
        ("default.flagos", BackendImplKind.DEFAULT, None, 150),
        ("vendor.cuda", BackendImplKind.VENDOR, "nvidia", 100),
        ("default.flaggems", BackendImplKind.DEFAULT, None, 120),
    }


@pytest.mark.parametrize("facts", [GPU, claimed("cuda")], ids=["cuda", "alias cuda"])
@pytest.mark.parametrize("table", [triton, cuda], ids=["triton", "cuda"])
def test_runs_on_nvidia_gpus_under_any_name(table: Any, facts: Facts) -> None:
    assert table.unavailable(facts) is None


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (CPU, "Triton has no CPU backend; TRITON_INTERPRET=1 runs it slowly for tests"),
        (claimed("cpu"), "Triton has no CPU backend; TRITON_INTERPRET=1 runs it slowly for tests"),
        (claimed("none"), "NVIDIA GPUs, not for the device of provider 'acme' (alias 'none')"),
        (Facts("xpu", 0), "NVIDIA GPUs, not for a xpu device"),
        (Facts("cuda", 0, (), (7, 5)), "needs compute capability 8.0, the device has 7.5"),
    ],
    ids=["cpu", "alias cpu", "alias none", "xpu", "old GPU"],
)
def test_triton_says_why_not(facts: Facts, says: str) -> None:
    assert says in str(triton.unavailable(facts))


def test_triton_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "find_spec", lambda name: None)
    assert triton.unavailable(GPU) == "Triton is not installed; pip install tefl[triton]"


@pytest.mark.parametrize("value", ["1", "true", "on"])
def test_triton_interprets_on_host_memory(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert triton.unavailable(CPU) is None
    assert triton.unavailable(claimed("cpu")) is None
    assert "TRITON_INTERPRET=1 cannot reach" in str(triton.unavailable(claimed("none")))


def test_triton_interpret_0_is_as_if_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "no CPU backend" in str(triton.unavailable(CPU))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (CPU, "runs on NVIDIA GPUs, not on cpu"),
        (claimed("cpu"), "runs on NVIDIA GPUs, not on maca"),
        (Facts("cuda", 0, (), (7, 5)), "needs compute capability 8.0, the device has 7.5"),
    ],
    ids=["cpu", "alias cpu", "old GPU"],
)
def test_cuda_says_why_not(facts: Facts, says: str) -> None:
    assert cuda.unavailable(facts) == says


def test_cuda_kernels_that_were_left_out_of_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = {"torch": torch.__version__, "cuda_skipped": "nvcc was not found on PATH"}
    monkeypatch.setattr(_native, "build_facts", lambda: skipped)
    assert cuda.unavailable(GPU) == "tefl was built without CUDA kernels: nvcc was not found on PATH"
    monkeypatch.setattr(_native, "build_facts", lambda: None)
    assert cuda.unavailable(GPU) == "tefl's compiled part was not built"


def test_cuda_kernels_that_got_lost_after_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_FATBINS", cuda._FATBINS / "nowhere")
    assert "the CUDA kernels are missing" in str(cuda.unavailable(GPU))


def test_cuda_skipped_by_the_environment_whatever_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TE_FL_SKIP_CUDA", "1")
    assert cuda.unavailable(GPU) == "TE_FL_SKIP_CUDA=1"


def test_cuda_has_no_kernel_for_a_grad_of_another_dtype() -> None:
    mixed = Facts("cuda", 0, (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16), (9, 0))
    reason = impl(cuda, "rmsnorm_bwd").is_available(mixed)  # type: ignore[misc]
    assert reason == "compiled for one dtype of grad and input, got float32 and bfloat16"
    one = Facts("cuda", 0, (torch.bfloat16, torch.bfloat16, torch.float32, torch.float32), (9, 0))
    assert impl(cuda, "rmsnorm_bwd").is_available(one) is None  # type: ignore[misc]


@pytest.mark.parametrize("table", [cuda, flaggems], ids=["cuda", "flaggems"])
def test_another_out_dtype_is_declined_call_by_call(table: Any) -> None:
    supports = impl(table, "rmsnorm_fwd").supports
    assert supports is not None
    x, weight = torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(8)
    for out_dtype, fits in ((None, True), (torch.bfloat16, True), (torch.float32, False)):
        answer = supports(x, weight, 1e-5, zero_centered_gamma=False, out_dtype=out_dtype)
        assert (answer is None) == fits
    assert "out_dtype is float32" in answer


def test_flaggems_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flaggems, "find_spec", lambda name: None)
    assert flaggems.unavailable(GPU) == "flag_gems is not installed; pip install tefl[flaggems]"


def test_flaggems_layernorm_would_round_its_statistics() -> None:
    predicate = impl(flaggems, "layernorm_fwd").is_available
    assert predicate is not None
    assert "statistics in bfloat16; float32 is promised" in predicate(GPU)
    assert predicate(Facts("cuda", 0, (torch.float32,), (9, 0))) is None


def test_flaggems_would_round_the_gradient_of_a_wider_weight() -> None:
    predicate = impl(flaggems, "rmsnorm_bwd").is_available
    assert predicate is not None
    dtypes = (torch.bfloat16, torch.bfloat16, torch.float32, torch.float32)
    assert predicate(Facts("cuda", 0, dtypes, (9, 0))) == (
        "FlagGems rounds dweight to bfloat16; the weight is float32"
    )
    assert predicate(Facts("cuda", 0, (*dtypes[:3], torch.bfloat16), (9, 0))) is None


def test_float64_is_left_to_the_reference() -> None:
    for table in (triton, cuda, flaggems):
        assert all(torch.float64 not in (i.supported_dtypes or ()) for i in table.implementations())


def test_saying_so_loads_nothing(fresh_python: RunPython) -> None:
    fresh_python("""
        import sys, torch
        from tefl.dispatch.types import Facts
        from tefl.kernels import cuda, flaggems, triton
        from tefl.kernels.cuda import table as a
        from tefl.kernels.flaggems import table as b
        from tefl.kernels.triton import table as c
        for facts in (Facts("cuda", 0, (torch.float32,), (9, 0)), Facts("cpu", None, (torch.float32,))):
            for table in (a, b, c):
                list(table.implementations()), table.unavailable(facts)
        loaded = {"triton", "flag_gems"} & set(sys.modules)
        assert not loaded, loaded
    """)
