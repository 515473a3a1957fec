"""Launching kernels of a binary on a claimed device, through its provider's launch table.

The device is the simulated one, whose binaries are shared libraries: all is tested but CUDA's driver.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ..conftest import RunPython
from .sim_op import CLAIMED

Launch = Callable[[str], str]


@pytest.fixture
def launch(fresh_python: RunPython, sim_library: Path) -> Launch:
    """Run code that launches the kernels of sim_kernels.c on the devices maca:0 and maca:1."""

    def run(code: str) -> str:
        return fresh_python(CLAIMED.format(library=str(sim_library)) + textwrap.dedent(code)).stdout

    return run


def test_values_of_every_type_arrive_in_order(launch: Launch) -> None:
    launch("""
        x, out = torch.arange(8.0).to("maca"), torch.empty(8, device="maca")
        mix((2,), (4,), out, x, 0, 2**40, 0.0, 0.0)
        assert out.cpu().tolist() == [2.0**40] * 8

        mix((2,), (4,), out, x, -3, 1000, 0.5, 0.25)
        assert out.cpu().tolist() == [v * 0.5 + 997.25 for v in range(8)]
        mix((2,), (4,), out, None, 1, 0, 0.5, 0.0)
        assert out.cpu().tolist() == [1.0] * 8
    """)


def test_the_shape_of_a_launch_and_parameters_that_are_always_null(launch: Launch) -> None:
    launch("""
        out = torch.zeros(8, dtype=torch.int64, device="maca")
        native = _native.load()
        kernel = native.Kernel(native.Binary(library.read_bytes()), "shape", "p0")
        kernel.launch((1, 1, 1), (32, 4, 2), 512, out)
        assert out.cpu().tolist() == [1, 1, 1, 32, 4, 2, 512, 100]
        out.zero_()
        BinaryKernel(library, "shape", "pp")((1,), (7,), out, out, shared_bytes=64)
        assert out.cpu().tolist() == [1, 1, 1, 7, 1, 1, 64, 1]
    """)


def test_a_kernel_runs_on_the_device_of_its_tensors(launch: Launch) -> None:
    """Whichever is current; and is loaded on each device it runs on."""
    launch("""
        for index in (1, 0, 1):
            out = torch.empty(4, device=f"maca:{index}")
            mix((1,), (4,), out, None, index, 0, 0.0, 0.0)
            assert out.cpu().tolist() == [float(index)] * 4
            assert torch.maca.current_device() == 0
    """)


def test_a_kernel_follows_the_current_stream(launch: Launch) -> None:
    """It runs while another stream is held up, and after what its own stream was given before."""
    launch("""
        wait_for = BinaryKernel(library, "wait_for", "pl")
        held, own = (torch.zeros(1, dtype=torch.int32) for _ in range(2))  # 0 holds a stream up
        busy, out = torch.zeros(1, device="maca"), torch.zeros(1, device="maca")
        torch.maca.synchronize()
        try:
            wait_for((1,), (1,), busy, held.data_ptr())
            with torch.Stream("maca"):
                wait_for((1,), (1,), out, own.data_ptr())
                mix((1,), (1,), out, out, 0, 0, 10.0, 0.0)
                own.fill_(1)
                assert out.cpu().item() == 10.0, "it did not wait for its own stream"
        finally:
            own.fill_(1), held.fill_(1)
        torch.maca.synchronize()
        assert busy.cpu().item() == 1.0
    """)


def test_a_grid_without_blocks_launches_nothing(launch: Launch) -> None:
    launch("""
        out = torch.ones(4, device="maca")
        mix((0,), (4,), out, None, 7, 0, 0.0, 0.0)
        assert out.cpu().tolist() == [1.0] * 4
    """)


def test_threads_that_meet_at_the_first_launch(launch: Launch) -> None:
    launch("""
        outs = [torch.empty(4, device=f"maca:{i % 2}") for i in range(8)]
        gate = threading.Barrier(8)
        def work(i):
            gate.wait()
            mix((1,), (4,), outs[i], None, i, 0, 0.0, 0.0)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        for index in range(2): torch.maca.synchronize(index)
        assert [out.cpu()[0].item() for out in outs] == list(range(8))
    """)


def test_errors_of_the_runtime_name_the_kernel_the_device_and_the_launch(launch: Launch) -> None:
    out = launch("""
        out = torch.empty(4, device="maca:1")
        print(raised(lambda: BinaryKernel(library, "mux", "p")((1,), (4,), out)))
        print(raised(lambda: BinaryKernel(Path(__import__("os").__file__), "mix", "p")((1,), (4,), out)))
        print(raised(lambda: BinaryKernel(library, "mix", "p")((3, 2), (4,), out, shared_bytes=16)))
    """)
    assert "RuntimeError" in out
    assert "the binary has no kernel 'mux'" in out
    assert "while launching kernel 'mux' on maca:1" in out
    assert "no shared library for this machine" in out
    assert "kernel 'mix' takes 6 parameters, got 1" in out
    assert "grid (3, 2, 1), block (4, 1, 1), 16 bytes of shared memory" in out


def test_arguments_that_do_not_fit_are_refused_before_anything_is_launched(launch: Launch) -> None:
    out = launch("""
        a, b = torch.empty(4, device="maca:0"), torch.empty(4, device="maca:1")
        one = BinaryKernel(library, "mix", "ppilfd")
        for args in ((a, b, 1, 1, 1.0, 1.0), (a, a, 2**31, 1, 1.0, 1.0), (a, a, 1.5, 1, 1.0, 1.0),
                     (a, a, 1, 1, 1.0), (a, 7, 1, 1, 1.0, 1.0), (a, a, 1, 1, "x", 1.0),
                     (None, None, 1, 1, 1.0, 1.0), (a.cpu(), None, 1, 1, 1.0, 1.0)):
            print(raised(lambda: one((1,), (4,), *args)))
        for lazy in (torch._neg_view(a), torch.ones(4, dtype=torch.complex64).to("maca").conj()):
            print(raised(lambda: one((1,), (4,), a, lazy, 1, 1, 1.0, 1.0)))
        one_block = (1,)
        for grid, block in (((-1,), (4,)), ((1,), (2**32,)), ((1.5,), one_block), ((1,), (1, "x")),
                            ((1,) * 4, one_block)):
            print(raised(lambda: one(grid, block, a, a, 1, 1, 1.0, 1.0)))
        print(raised(lambda: BinaryKernel(library, "mix", "pz")((1,), (4,), a, 1)))
    """)
    for part in (
        "argument 1 is on maca:1, another one on maca:0; wanted all tensors on one device",
        "argument 2 is 2147483648, which does not fit the kernel's int32",
        "argument 2 must be an int, got float",
        "takes 6 arguments (signature 'ppilfd'), got 5",
        "argument 1 must be a tensor or None, got int",
        "argument 4 must be a number, got str",
        "ValueError: kernel 'mix': argument 1 is negated or conjugated lazily",
        "ValueError: kernel 'mix': the grid has -1; wanted are ints from 0 to 4294967295",
        "ValueError: kernel 'mix': the block has 4294967296; wanted are ints",
        "TypeError: kernel 'mix': the grid must consist of ints, got float",
        "TypeError: kernel 'mix': the block must consist of ints, got str",
        "ValueError: kernel 'mix': the grid has at most three dimensions, got 4",
        "no argument is a tensor that says which device to launch on",
        "cannot launch a kernel on cpu: compiled kernels run on cuda and on a claimed device, not on cpu",
        "the signature 'pz' has 'z'; wanted are p (pointer)",
    ):
        assert part in out
    assert out.count("is negated or conjugated lazily") == 2


def test_a_kernel_that_fails_is_an_asynchronous_error(launch: Launch) -> None:
    out = launch("""
        out = torch.empty(4, device="maca")
        BinaryKernel(library, "fail", "p")((1,), (4,), out)
        print(raised(torch.maca.synchronize))
    """)
    assert out.startswith("AcceleratorError")
    assert "kernel 'fail' failed with code 7" in out


def test_without_a_driver_cuda_says_what_is_missing(fresh_python: RunPython) -> None:
    if torch.cuda.is_available():
        pytest.skip("the CUDA driver is there")
    code = "import torch; from tefl import _native; print(_native.load().launch_defect('cuda'))"
    out = fresh_python(code).stdout
    assert "libcuda.so.1" in out
    assert "install the NVIDIA driver, or add its folder to LD_LIBRARY_PATH" in out


def test_where_no_device_is_claimed_that_is_the_reason(fresh_python: RunPython) -> None:
    code = "import torch; from tefl import _native; print(_native.load().launch_defect('privateuseone'))"
    assert fresh_python(code).stdout.strip() == "no device provider is claimed"


def test_triton_is_interpreted_on_a_claimed_device_in_host_memory(fresh_python: RunPython) -> None:
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    fresh_python(
        """
        import torch, tefl
        import torch.nn.functional as F
        from tefl.privateuse1 import PrivateUse1Backend, register_backend
        register_backend(PrivateUse1Backend("maca", "sim"))
        x, weight = torch.randn(5, 40), torch.rand(40)
        with tefl.record() as calls:
            out, _ = torch.ops.tefl.rmsnorm_fwd(x.to("maca"), weight.to("maca"), 1e-5)
        assert out.device.type == "maca"
        torch.testing.assert_close(out.cpu(), F.rms_norm(x, (40,), weight, 1e-5))
        assert [key[1] for key in calls] == ["default.flagos"], calls
        """,
        TRITON_INTERPRET="1",
    )
