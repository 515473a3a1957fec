"""Calls that native code serves by a recipe: allocation and launches, on the simulated device.

What `BinaryKernel` launches there is a host function, so that all is tested but CUDA's driver.
"""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import RunPython
from .host_cuda import ROOT

PRELUDE = """
import threading, torch, tefl
from pathlib import Path
from tefl.dispatch import OpDecl
from tefl.kernels._buffer import Buffer, dense
from tefl.kernels.launcher import BinaryKernel
from tefl.kernels.recipe import Recipe, by_recipe, launch
from tefl.privateuse1 import PrivateUse1Backend, register_backend

register_backend(PrivateUse1Backend("maca", "sim"))
library = Path({library!r})
add, mix = BinaryKernel(library, "add", "pppl"), BinaryKernel(library, "mix", "ppilfd")
written = []

@by_recipe
def both(a, b, scale=2.0):
    "(a + b) * scale, a + b"
    written.append(tuple(a.shape))
    total, out = (Buffer(tuple(a.shape), torch.float32, zero=a.numel() == 0) for _ in range(2))
    wide = [dense(x, torch.float32) for x in (a, b)]
    launches = [
        launch(add, (3,), (1,), total, *wide, a.numel()),
        launch(mix, (a.numel(),), (1,), out, total, 0, 0, scale, 0.0),
    ]
    return Recipe(a.device, launches if a.numel() else [], (out, total))

def reference(a, b, scale=2.0):
    return (a.float() + b.float()) * scale, a.float() + b.float()

def fake(a, b, scale=2.0):
    return a.new_empty(a.shape, dtype=torch.float32), a.new_empty(a.shape, dtype=torch.float32)

tefl.ops.register(
    OpDecl("both", "test", "(Tensor a, Tensor b, float scale=2.0) -> (Tensor, Tensor)", fake, reference)
)

def register(fn, impl_id="vendor.acme", **fields):
    kind = impl_id.partition(".")[0]
    vendor = "acme" if kind == "vendor" else None
    tefl.get_registry().register_impl(tefl.OpImpl("both", impl_id, kind, fn, vendor=vendor, **fields))

def check(a, b, *scale):
    "The op against plain PyTorch on the CPU."
    got, want = torch.ops.tefl.both(a, b, *scale), reference(a.cpu(), b.cpu(), *scale)
    for have, expected in zip(got, want, strict=True):
        assert have.device == a.device
        assert have.is_contiguous()
        torch.testing.assert_close(have.cpu(), expected, rtol=0, atol=0)

def random(*shape, index=0, **options):
    return torch.randn(*shape, **options).to(f"maca:{{index}}")

def raised(call):
    try:
        call()
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
    raise AssertionError("nothing was raised")
"""

Sim = Callable[..., str]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("sim") / "kernels.so"
    source = Path(__file__).with_name("sim_kernels.c")
    include = ROOT / "csrc" / "providers" / "sim"
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", "-o", str(built), str(source)], check=True)
    return built


@pytest.fixture
def sim(fresh_python: RunPython, library: Path) -> Sim:
    """Run code with the op ``both`` and its recipe on the devices maca:0 and maca:1."""

    def run(code: str, **variables: str) -> str:
        return fresh_python(PRELUDE.format(library=str(library)) + textwrap.dedent(code), **variables).stdout

    return run


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
        slow = BinaryKernel(library, "slow", "pi")
        a, b = random(1), random(1)
        check(a, b), check(a, b)
        for stream in (torch.Stream("maca:0"), torch.Stream("maca:0")):
            with stream:
                before = a.cpu()
                slow((1,), (1,), a, 300)  # adds 1 to a on this stream; another one would read it too early
                out, total = torch.ops.tefl.both(a, b)
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
            cache_key, arg_names = "", ["out", "a", "b", "n"]
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


# --- what dispatch promises holds as it does for Python's implementations ---


def test_checking_recording_and_contexts(sim: Sim) -> None:
    sim("""
        register(both)
        register(reference, "reference.torch")
        a, b = random(4, 6), random(4, 6)
        for _ in range(3):
            check(a, b)
        with tefl.record() as calls:
            check(a, b)
        assert calls == {("both", "vendor.acme", "maca"): 1}, calls
        with tefl.with_preference("reference"), tefl.record() as calls:
            check(a, b)
        assert calls == {("both", "reference.torch", "maca"): 1}, calls
        with tefl.with_denied_vendors("acme"):
            for _ in range(2):
                check(a, b)
        tefl.get_registry().unregister("vendor.acme", "both")
        before = len(written)
        for _ in range(2):
            check(a, b)
        assert len(written) == before
    """)


def test_under_TEFL_CHECK_every_call_is_compared_with_the_reference(sim: Sim) -> None:
    out = sim(
        """
        @by_recipe
        def wrong(a, b, scale=2.0):
            return both.write(a, b, scale + (len(written) == 3))
        register(wrong)
        a, b = random(4, 6), random(4, 6)
        for _ in range(3):
            check(a, b)
        print(raised(lambda: check(a, b)))
        """,
        TEFL_CHECK="1",
    )
    assert out.startswith(
        "Deviation: Op 'both': implementation 'vendor.acme', result 0 differs from the reference"
    )


def test_results_of_another_form_than_promised_are_brought_to_it(sim: Sim) -> None:
    """So Python serves such calls, and one warning says what was amiss."""
    sim("""
        @by_recipe
        def narrow(a, b, scale=2.0):
            written.append(1)
            total, out = Buffer((1, *a.shape), torch.float32), Buffer(tuple(a.shape), torch.float32)
            return Recipe(a.device, [
                launch(add, (3,), (1,), total, a, b, a.numel()),
                launch(mix, (a.numel(),), (1,), out, total, 0, 0, scale, 0.0),
            ], (out, total))
        register(narrow)
        for calls in range(1, 4):
            check(random(4, 6), random(4, 6))
            assert len(written) == 1 + calls
    """)


def test_a_tensor_that_is_no_argument_is_left_to_python(sim: Sim) -> None:
    sim("""
        zeros = torch.zeros(24, device="maca")
        @by_recipe
        def with_a_table(a, b, scale=2.0):
            written.append(1)
            recipe = both.write(a, b, scale)
            total = recipe.results[1]
            more = launch(add, (1,), (1,), total, total, zeros, 24)
            return Recipe(a.device, [recipe.launches[0], more, recipe.launches[1]], recipe.results)
        register(with_a_table)
        for _ in range(3):
            check(random(4, 6), random(4, 6))
    """)


def test_a_launch_that_fails_is_fallen_back_from_once(sim: Sim) -> None:
    """The kernel is right on one device and, for want of a parameter, not on the other."""
    out = sim("""
        import logging
        seen = []
        handler = logging.Handler()
        handler.emit = lambda record: seen.append(record.getMessage())
        logging.getLogger("TE-FL").addHandler(handler)
        short = BinaryKernel(library, "add", "ppp")

        @by_recipe
        def fragile(a, b, scale=2.0):
            written.append(a.data_ptr() % 16)
            recipe = both.write(a, b, scale)
            if len(written) < 4:  # the first two calls and the hand-over of the first
                return recipe
            total = recipe.results[1]
            failing = launch(short, (3,), (1,), total, a, b)
            return Recipe(a.device, [failing, recipe.launches[1]], recipe.results)
        register(fragile)
        register(reference, "reference.torch")
        with tefl.record() as calls:
            for _ in range(4):
                check(random(4, 6), random(4, 6))
        assert calls[("both", "reference.torch", "maca")] >= 1, calls
        print([line for line in seen if "failed" in line])
        with tefl.with_strict_mode():
            print(raised(lambda: check(random(4, 6), random(4, 6))))
    """)
    assert "'vendor.acme' failed on maca:0 (float32, float32)" in out
    assert "kernel 'add' takes 4 parameters, got 3" in out
    assert "while launching kernel 'add' on maca:0: grid (3, 1, 1), block (1, 1, 1)" in out


def test_an_asynchronous_error_and_want_of_memory_are_the_callers(sim: Sim) -> None:
    out = sim(
        """
        register(both)
        register(reference, "reference.torch")
        a, b = random(4, 6), random(4, 6)
        check(a, b), check(a, b)
        big = random(1 << 20)
        check(big, big), torch.maca.synchronize()
        torch.ops.tefl.both(big, big)
        kept = []
        print(raised(lambda: [kept.append(torch.ops.tefl.both(big, big)) for _ in range(100)]))
        kept.clear()
        BinaryKernel(library, "fail", "p")((1,), (1,), a)
        torch.ops.tefl.both(a, b)
        with tefl.record() as calls:
            torch.ops.tefl.both(a, b)
        print(raised(torch.maca.synchronize))
        assert calls == {("both", "vendor.acme", "maca"): 1}, calls
        assert "failed" not in str(tefl.explain("both", a, b))
        """,
        TEFL_SIM_CAPACITY="256M",
    )
    assert out.startswith("OutOfMemoryError")
    assert "AcceleratorError" in out
    assert "kernel 'fail' failed with code 7" in out
