"""A hung stream: a wait with a time-out says which stream, what it is at, and what was enqueued there."""

from __future__ import annotations

from textwrap import dedent
from threading import Timer

import pytest
import torch
from interpreters import HERE

SETUP = """
import os, sys, time, torch
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend("maca", "sim"))
def told(work):
    try:
        work()
    except torch.AcceleratorError as error:
        return str(error).strip()
    return "nothing"
def hang(device="maca:1"):
    x, pinned = torch.ones(4, device=device), torch.ones(4).pin_memory()
    x.copy_(pinned, non_blocking=True)  # the first operation on a stream
    while "it is at" not in told(lambda: torch.maca.synchronize(device, timeout=0.05)):
        pass  # its thread has not come to it
    return x, pinned
"""


def run(python, code: str, faults: str = "hang:1", **environment: str) -> str:
    # What hangs never ends: the process is left without giving anything back.
    ending = "\nsys.stdout.flush()\nos._exit(0)\n"
    return python(SETUP + dedent(code) + ending, timeout=60, TEFL_SIM_FAULTS=faults, **environment)


WHERE = (
    "maca:1, default stream; it is at the copy of 16 bytes from the host to device 1; enqueued there and not "
    "known to be done: copy from the host (16 bytes)"
)


def test_the_device_modules_synchronize_gives_up_after_its_timeout(python):
    out = run(
        python,
        """
        kept = hang()
        print(told(lambda: torch.maca.synchronize(1, timeout=0.6)))
        print(told(lambda: torch.maca.synchronize(0, timeout=30)))
        """,
    ).splitlines()
    assert out[0].startswith(f"maca: synchronize failed: not done after 0.6 s: {WHERE}. ")
    assert out[1] == "nothing"


@pytest.mark.parametrize(
    "wait",
    [
        "torch.maca.synchronize(1)",
        "torch.accelerator.synchronize(1)",
        "torch.accelerator.current_stream(1).synchronize()",
        "x.cpu()",
        "x + 1",
        "x.tolist()",
    ],
)
def test_the_variable_bounds_every_wait(python, wait):
    out = run(
        python,
        f"""
        x, pinned = hang()
        print(told(lambda: {wait}))
        """,
        TEFL_SYNC_TIMEOUT="0.6",
    )
    assert out.startswith("maca: synchronize failed: not done after 0.6 s: maca:1, default stream; it is at ")


def test_an_event_that_never_comes_is_given_up_on_as_well(python):
    out = run(
        python,
        """
        kept, event = hang(), torch.Event("maca:1")
        event.record(torch.accelerator.current_stream(1))
        print(event.query(), told(event.synchronize))
        """,
        TEFL_SYNC_TIMEOUT="0.6",
    )
    assert out.startswith(
        f"False maca: synchronize failed: not done after 0.6 s: an event, of one of these streams: {WHERE}"
    )


@pytest.mark.sim_only("the stream waits for the simulator's gate")
def test_an_event_of_work_that_nothing_is_known_of_is_told_as_an_event(maca, closed):
    from tefl import _native

    for index in range(maca.device_count()):
        maca.synchronize(index)  # what other tests enqueued is done, and known to be
    stream = torch.Stream("maca:0")
    closed(stream)  # the provider's own doing, so that tefl has not noted it
    event = stream.record_event()
    _native.load().set_patience(0.6)
    try:
        with pytest.raises(
            torch.AcceleratorError, match=r"not done after 0\.6 s: an event\. The work goes on"
        ):
            event.synchronize()
    finally:
        _native.load().set_patience(0)


@pytest.mark.sim_only("the streams wait for the simulator's gates")
def test_the_time_is_for_all_streams_together(maca, closed):
    """The second stream is busy when the time is up; counted anew from the first's end, it would not be."""
    gates = closed(torch.accelerator.current_stream(0)), closed(torch.Stream("maca:0"))
    openers = [
        Timer(after, setattr, (gate, "value", 1)) for after, gate in zip((1.2, 2.6), gates, strict=True)
    ]
    for opener in openers:
        opener.start()
    with pytest.raises(torch.AcceleratorError, match=r"not done after 1\.5 s: maca:0"):
        maca.synchronize(0, timeout=1.5)
    for opener in openers:
        opener.join()


@pytest.mark.parametrize(
    ("work", "opaque"),
    [("y.copy_(x)", "0"), ("x.copy_(y)", "0"), ("x.cpu()", "0"), ("x + 1", "1"), ("x.add_(1)", "1")],
)
def test_host_memory_of_a_copy_that_was_given_up_on_stays_the_copys(python, compile_library, work, opaque):
    """Freed, it would be the next tensor's, and the copy would still write or read it."""
    image = compile_library("gate", (HERE / "sim_kernels.c").read_text())
    out = run(
        python,
        f"""
        from ctypes import c_void_p
        from pathlib import Path
        from sim_driver import LIBRARY, Kernels, Sim
        from tefl import _native
        x, y = torch.full((2000,), 7.0, device="maca:0"), torch.full((2000,), 5.0)
        place = y.data_ptr()
        torch.maca.synchronize(0, timeout=50)
        kernels = Kernels(Sim(LIBRARY, start=False), Path({str(image)!r}).read_bytes(), 0)
        gate = kernels.close(c_void_p(_native.load().raw_stream(0)))
        print(told(lambda: {work})[:33])
        del y
        others = [torch.zeros(2000) for _ in range(8)]  # of the same size: they take what was freed
        gate.value = 1
        torch.maca.synchronize(0, timeout=50)
        print([int(other.count_nonzero()) for other in others])
        print(place in [other.data_ptr() for other in others])
        """,
        faults="",
        TEFL_SIM_OPAQUE=opaque,
        TEFL_SYNC_TIMEOUT="0.1",
    ).splitlines()
    freed = "y" not in work  # by the test alone, which may
    assert out[:2] == ["maca: synchronize failed: not don", str([0] * 8)]
    assert freed or out[2] == "False"


def test_device_memory_of_a_copy_that_was_given_up_on_stays_the_copys(python, compile_library):
    """Between two devices: the copy is enqueued and held, and noting its end for the other device fails."""
    image = compile_library("gate", (HERE / "sim_kernels.c").read_text())
    out = run(
        python,
        f"""
        from ctypes import c_void_p
        from pathlib import Path
        from sim_driver import LIBRARY, Kernels, Sim
        from tefl import _native
        x, y = (torch.full((2000,), 7.0, device=f"maca:{{i}}") for i in (0, 1))
        place = y.data_ptr()
        for i in (0, 1):
            torch.maca.synchronize(i, timeout=50)
        kernels = Kernels(Sim(LIBRARY, start=False), Path({str(image)!r}).read_bytes(), 0)
        gate = kernels.close(c_void_p(_native.load().raw_stream(0)))
        try:
            y.copy_(x)
        except RuntimeError as error:
            print(error)
        del y
        others = [torch.empty(2000, device="maca:1") for _ in range(8)]
        print(place in [other.data_ptr() for other in others])
        gate.value = 1
        """,
        faults="event_record:2",
        TEFL_SYNC_TIMEOUT="0.1",
    ).splitlines()
    assert "event_record" in out[0]
    assert out[1] == "False"


def test_another_stream_than_the_default_is_told_by_its_id(python):
    out = run(
        python,
        """
        stream = torch.Stream("maca:1")
        with stream:
            kept = hang()
        print(told(lambda: torch.maca.synchronize(1, timeout=0.6)).replace(str(stream.stream_id), "ID"))
        """,
    )
    assert "maca:1, stream ID; it is at the copy of 16 bytes" in out


def test_work_that_ends_in_time_raises_nothing(python):
    assert run(
        python,
        """
        x = torch.ones(1000, device="maca")
        for _ in range(50):
            y = x.to("maca:1", non_blocking=True) + 1
        torch.maca.synchronize(1)
        print(y.sum().item())
        """,
        faults="",
        TEFL_SYNC_TIMEOUT="30",
    ).endswith("2000.0")


@pytest.mark.parametrize("timeout", ["0", "-1", "float('inf')", "float('nan')"])
def test_a_timeout_is_a_number_above_zero(python, timeout):
    out = run(
        python,
        f"""
        try:
            torch.maca.synchronize(timeout={timeout})
        except ValueError as error:
            print(error)
        """,
    )
    assert out.startswith("synchronize: timeout is ")
    assert out.endswith("want a number of seconds above 0, or None")


@pytest.mark.parametrize("timeout", ["'a'", "[1]", "1j"])
def test_a_timeout_of_another_type_is_refused_by_name(python, timeout):
    out = run(
        python,
        f"""
        try:
            torch.maca.synchronize(timeout={timeout})
        except TypeError as error:
            print(error)
        """,
    )
    assert out == f"synchronize: timeout is {timeout}, want a number of seconds above 0, or None"


def test_a_bad_variable_is_a_defect_of_the_claim(python):
    out = python(
        """
        import torch
        from tefl.privateuse1 import BackendError, PrivateUse1Backend, register_backend
        try:
            register_backend(PrivateUse1Backend("maca", "sim"))
        except BackendError as error:
            print(error.defects[0])
        print(torch._C._get_privateuse1_backend_name())
        """,
        TEFL_SYNC_TIMEOUT="soon",
    ).splitlines()
    assert out == [
        "TEFL_SYNC_TIMEOUT='soon'; accepted: seconds, 0 for no end -> correct the variable",
        "privateuseone",
    ]
