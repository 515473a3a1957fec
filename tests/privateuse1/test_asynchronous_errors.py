"""What fails on a stream surfaces at the next wait as torch.AcceleratorError, naming what was enqueued."""

from __future__ import annotations

from textwrap import dedent

import pytest

SETUP = """
import sys, torch
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend("maca", "sim"))
def told(work):
    try:
        work()
    except torch.AcceleratorError as error:
        assert isinstance(error, RuntimeError)
        return str(error).strip()
    return "nothing"
def wait_until_idle(stream):
    while not stream.query():
        pass
"""


def run(python, code: str, faults: str, **environment: str) -> str:
    return python(SETUP + dedent(code), TEFL_SIM_FAULTS=faults, **environment)


def test_a_copy_that_fails_is_named_by_the_stream_it_was_enqueued_on(python):
    out = run(
        python,
        """
        x, pinned = torch.ones(4, device="maca:1"), torch.ones(4).pin_memory()
        stream = torch.Stream("maca:1")
        with stream:
            x.copy_(pinned, non_blocking=True)
            y = torch.empty_like(x).copy_(x)
        text = told(stream.synchronize)
        print(text.replace(str(stream.stream_id), "ID"))
        print(told(stream.synchronize), told(lambda: torch.maca.synchronize(1)))
        """,
        "memcpy:1",
    )
    assert out.splitlines() == [
        "maca: stream_synchronize failed: the copy of 16 bytes from the host to device 1 failed: a fault "
        "injected by TEFL_SIM_FAULTS (maca:1, stream ID; enqueued there and not known to be done: copy from "
        "the host (16 bytes), copy on the device (16 bytes))",
        "nothing nothing",
    ]


def test_synchronising_the_device_names_every_stream_with_work(python):
    out = run(
        python,
        """
        pinned = torch.ones(4).pin_memory()
        for device in ("maca:0", "maca:1"):
            torch.empty(4, device=device).copy_(pinned, non_blocking=True)
        print(told(lambda: torch.maca.synchronize(0)))
        print(told(lambda: torch.accelerator.synchronize(1)))
        """,
        "memcpy:1*",
    ).splitlines()
    for index, text in enumerate(out):
        assert text.startswith(
            f"maca: device_synchronize failed: the copy of 16 bytes from the host to device {index}"
        )
        assert (
            f"maca:{index}, default stream; enqueued there and not known to be done: copy from the host ("
            in text
        )
        assert f"maca:{1 - index}, default" not in text


def test_an_operator_that_waited_for_the_failed_work_is_named_too(python):
    out = run(
        python,
        """
        x, pinned = torch.ones(4, device="maca"), torch.ones(4).pin_memory()
        x.copy_(pinned, non_blocking=True)
        print(told(lambda: x + 1))
        print(told(lambda: x + 1))
        """,
        "memcpy:1",
    ).splitlines()
    assert "default stream; enqueued there and not known to be done: copy from the host (16 bytes)" in out[0]
    assert "while aten::add.Tensor waited for the work before it" in " ".join(out)
    assert out[-1] == "nothing"


def test_a_launched_kernel_is_named(python, image, tmp_path):
    (tmp_path / "kernels.so").write_bytes(image)
    out = run(
        python,
        f"""
        from tefl import _native
        native, image = _native.load(), open({str(tmp_path / "kernels.so")!r}, "rb").read()
        x = torch.ones(4, device="maca")
        native.Kernel(native.Binary(image), "fail_on", "pi").launch((1,), (1,), 0, x, 42)
        print(told(torch.maca.synchronize))
        """,
        "",
    )
    assert "kernel 'fail_on' failed with code 42" in out
    assert "enqueued there and not known to be done: kernel 'fail_on'" in out


def test_copies_for_an_operator_without_a_kernel_bear_its_name(python):
    out = run(
        python,
        """
        x = torch.ones(4).to("maca")
        print(told(lambda: x.exp_()))
        print(told(lambda: x.exp_()))
        print(x.tolist()[0])
        """,
        "memcpy:2,memcpy:4",
        TEFL_SIM_OPAQUE="1",
        TEFL_LOG_LEVEL="ERROR",
    ).splitlines()
    assert "copy to the host for 'aten::exp_' (16 bytes)" in out[0]
    assert "copy from the host for 'aten::exp_' (16 bytes)" in out[1]
    assert out[2] == "1.0"


def test_a_thread_of_autograd_passes_the_error_on(python):
    out = run(
        python,
        """
        x = torch.ones(4, device="maca", requires_grad=True)
        pinned = torch.ones(4).pin_memory()
        class Copy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, grad):
                return grad.clone().copy_(pinned, non_blocking=True)
        y = (Copy.apply(x * 3)).sum()
        print(told(y.backward))
        """,
        "memcpy:1",
    )
    assert "copy from the host (16 bytes)" in out


@pytest.mark.parametrize("call", ["stream_create", "event_create", "event_record", "stream_wait_event"])
def test_a_call_that_fails_at_once_is_named_and_may_be_repeated(python, call):
    out = run(
        python,
        """
        def attempt():
            x = torch.ones(4, device="maca:0")
            with torch.Stream("maca:1"):
                return x.to("maca:1").sum().item()
        try:
            attempt()
        except RuntimeError as error:
            print(type(error).__name__, str(error).splitlines()[0])
        print(attempt())
        """,
        f"{call}:1",
    )
    assert out.splitlines() == [
        f"RuntimeError maca: {call} failed: a fault injected by TEFL_SIM_FAULTS into {call}",
        "4.0",
    ]
