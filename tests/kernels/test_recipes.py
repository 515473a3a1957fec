"""Calls that native code serves by a recipe: allocation and launches, on the simulated device.

What `BinaryKernel` launches there is a host function, so that all is tested but CUDA's driver.
"""

from __future__ import annotations

import pytest

from ..conftest import RunPython
from .conftest import Sim


def test_calls_that_look_alike_are_laid_out_once_and_served_on_each_device(sim: Sim) -> None:
    sim("""
        register(both)
        for _ in range(4):
            for index in (0, 1):
                for rows in (1, 5):
                    check(random(rows, 6, index=index), random(rows, 6, index=index))
        # Twice for each form: when Python served its first call, and when that was handed over.
        assert len(written) == 2 * 4, written
        assert torch.maca.current_device() == 0
        for _ in range(3):
            check(random(5, 6), random(5, 6), 0.5)
        assert len(written) == 2 * 5
    """)


def test_any_layout_and_dtype_of_the_arguments_is_served(sim: Sim) -> None:
    """Copied or cast into dense memory at each call, no rows, rows that do not start at 16 bytes."""
    sim("""
        register(both)
        forms = [
            lambda: (random(6, 4).t(), random(4, 6)),
            lambda: (random(4, 12)[:, ::2], random(4, 6)),
            lambda: (random(4, 6, dtype=torch.float64), random(4, 6, dtype=torch.float16)),
            lambda: (random(0, 6), random(0, 6)),
            lambda: (random(7)[1:], random(6)),
            lambda: (random(1), random(1)),
            lambda: (random(2, 1, 3, 1, 2), random(2, 1, 3, 1, 2)),
        ]
        for _ in range(3):
            for form in forms:
                check(*form())
        assert len(written) == 2 * len(forms), written
    """)


def test_one_tensor_for_two_arguments_is_no_promise_for_the_next_call(sim: Sim) -> None:
    sim("""
        register(both)
        x = random(4, 6)
        check(x, x)
        for _ in range(2):
            check(random(4, 6), random(4, 6))
        check(x, x)
        assert len(written) == 2
    """)


def test_alignment_tells_calls_apart(sim: Sim) -> None:
    """Machine code that reads 16 bytes at a time is not launched on rows that start elsewhere."""
    sim("""
        aligned = []
        @by_recipe
        def choosy(a, b, scale=2.0):
            aligned.append(a.data_ptr() % 16 == 0)
            return both.write(a, b, scale)
        register(choosy)
        whole = random(64)
        for start in (0, 4, 8, 1, 2, 3, 5, 12):
            check(whole[start:start + 8], random(8))
        assert aligned == [True, True, False, False], aligned
    """)


def test_the_launches_follow_the_current_stream(sim: Sim) -> None:
    sim("""
        register(both)
        wait_for = BinaryKernel(library, "wait_for", "pl")
        a, b = random(1), random(1)
        check(a, b), check(a, b)
        for stream in (torch.Stream("maca:0"), torch.Stream("maca:0")):
            with stream:
                before, flag = a.cpu(), torch.zeros(1, dtype=torch.int32)
                wait_for((1,), (1,), a, flag.data_ptr())  # adds 1 to a on this stream, once the flag is up
                out, total = torch.ops.tefl.both(a, b)
            torch.maca.current_stream().synchronize()  # the default one, which would have read a by now
            flag.fill_(1)
            stream.synchronize()
            assert total.cpu() == before + 1 + b.cpu()
        assert len(written) == 2
    """)


def test_threads_and_streams_on_two_devices_at_once(sim: Sim) -> None:
    sim("""
        register(both)
        gate, errors = threading.Barrier(4), []
        def work(number):
            try:
                index = number % 2
                gate.wait(timeout=60)
                for round in range(30):
                    with torch.Stream(f"maca:{index}") as stream:
                        rows = 1 + (round + number) % 3
                        check(random(rows, 6, index=index), random(rows, 6, index=index))
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not errors, errors
        done = len(written)
        assert done <= 4 * 2 * 6  # at most what four threads meet first, each at six forms
        check(random(2, 6), random(2, 6))
        assert len(written) == done
    """)


TRITON = """
        from types import SimpleNamespace
        from tefl.kernels import launcher
        from tefl.kernels.launcher import TritonKernel

        # In Triton's place: "compiling" gives the simulated device's binary, whose kernel `add` takes n as l.
        compiled, meta = [], dict(num_ctas=1, num_warps=1, shared=0, target=SimpleNamespace(warp_size=1))
        class Function:
            cache_key, arg_names, __name__ = "", ["out", "a", "b", "n"], "add"
            fn = staticmethod(lambda out, a, b, n: None)
            params = [SimpleNamespace(do_not_specialize=False, is_constexpr=False)] * 4
        def compile(function, arguments, constexprs, arch, num_warps):
            compiled.append(arguments)
            ptx = ".entry add(.param .param .param .param )"
            return SimpleNamespace(
                asm={"cubin": library.read_bytes(), "ptx": ptx}, metadata=SimpleNamespace(name="add", **meta)
            )
        launcher.compile_triton, launcher._arch = compile, lambda index: 90
        launcher._LETTERS["i32"] = "l"
        kernel = TritonKernel(Function())

        @by_recipe
        def by_triton(a, b, scale=2.0):
            total, out = (Buffer(tuple(a.shape), torch.float32) for _ in range(2))
            return Recipe(a.device, [
                launch(kernel, (2,), total, a, b, a.numel(), num_warps=1),
                launch(mix, (a.numel(),), (1,), out, total, 0, 0, scale, 0.0),
            ], (out, total))
        register(by_triton)
"""


def test_threads_that_meet_on_a_triton_kernel_compile_it_once(sim: Sim) -> None:
    """For all devices of one architecture; and once more for each kind of argument."""
    code = """
        gate, errors = threading.Barrier(4), []
        def work(number):
            try:
                index = number % 2
                gate.wait(timeout=60)
                for round in range(20):
                    with torch.Stream(f"maca:{index}") as stream:
                        shape = 8, 4 + 4 * (round % 2)
                        check(random(*shape, index=index), random(*shape, index=index))
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not errors, errors
        assert len(compiled) == 1, compiled
        for _ in range(2):
            check(random(5), random(5))  # 16 does not divide 5
            check(random(9)[1:], random(8))  # nor the address, nor 8
        assert len(compiled) == 3, compiled
    """
    sim(TRITON + code)


def test_interpreted_kernels_stay_in_python_and_empty_calls_need_none(fresh_python: RunPython) -> None:
    """Without rows nothing is launched, and native code makes the results on whichever device it is."""
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    fresh_python(
        """
        import torch, tefl
        weight = torch.rand(7)
        for rows in (0, 3):
            for _ in range(3):
                x, grad = torch.randn(rows, 7, requires_grad=True), torch.randn(rows, 7)
                out, rsigma = torch.ops.tefl.rmsnorm_fwd(x, weight, 1e-5)
                assert (out.shape, rsigma.shape, out.device.type) == ((rows, 7), (rows,), "cpu")
                torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (7,), weight, 1e-5))
                dinput, dweight = torch.ops.tefl.rmsnorm_bwd(grad, x, rsigma, weight)
                assert dinput.shape == (rows, 7)
                assert (dweight == 0).all() == (rows == 0)
        """,
        TRITON_INTERPRET="1",
    )
