"""The sim provider as a citizen of a process: errors, settings, threads, forks, the end."""

from __future__ import annotations

import subprocess
import threading
from ctypes import c_int32, c_void_p

import pytest
from sim_driver import (
    DEVICE,
    INVALID,
    LIBRARY,
    fails,
    pointer,
)

# ---------------------------------------------------------------------------------------------- errors


def test_a_failed_kernel_is_reported_once_by_the_next_wait_and_later_work_is_done(sim, kernels):
    stream, result = sim.stream(), c_int32(0)
    kernels("fail", stream, c_int32(42))
    kernels("store", stream, pointer(result), c_int32(1))
    with fails(DEVICE, "kernel 'fail' failed with code 42"):
        sim.synchronize(stream)
    sim.synchronize(stream)
    assert result.value == 1
    kernels("fail", stream, c_int32(43))
    with fails(DEVICE, "code 43"):
        sim.call("device_synchronize", 0)
    sim.call("device_synchronize", 0)


def test_a_device_that_is_not_there_is_named_with_how_many_there_are(sim):
    assert sim.device_count() == 2
    for index in (2, -1):
        with fails(INVALID, f"no device {index}: there are 2"):
            sim.malloc(index, 8)


def test_messages_belong_to_the_thread_whose_call_failed(sim):
    with fails(INVALID, "no device 7"):
        sim.malloc(7, 8)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(sim.error()))
    thread.start()
    thread.join()
    assert seen == [""]
    assert "no device 7" in sim.error()


def test_unknown_handles_are_refused(sim):
    nobody = c_void_p(0x1234)
    for name in ("stream_synchronize", "event_synchronize", "module_unload"):
        with fails(INVALID, "not a live"):
            sim.call(name, nobody)
        with fails(INVALID, "not a live"):
            sim.call(name, None)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TEFL_SIM_DEVICES", "two"),
        ("TEFL_SIM_DEVICES", "0"),
        ("TEFL_SIM_DEVICES", "65"),
        ("TEFL_SIM_CAPACITY", "1T"),
        ("TEFL_SIM_CAPACITY", "-1"),
        ("TEFL_SIM_CAPACITY", "K"),
        ("TEFL_SIM_CAPACITY", "99999999999G"),
    ],
)
def test_a_bad_setting_is_quoted_and_may_be_corrected(python, variable, value):
    out = python(
        f"""
        import os
        from sim_driver import Sim, SimError
        sim = Sim(start=False)
        try:
            sim.call("init")
        except SimError as error:
            print(error)
        os.environ.pop({variable!r})
        import ctypes
        ctypes.CDLL(None).unsetenv({variable!r}.encode())
        sim.call("init")
        """,
        **{variable: value},
    )
    assert out.startswith(f"init: {variable}='{value}': want a whole number")


# --------------------------------------------------------------------------------------------- process


def test_counting_devices_needs_no_start_and_threads_come_with_the_first_work(python):
    assert python(
        """
        import os
        from sim_driver import Sim
        def threads(): return len(os.listdir("/proc/self/task"))
        sim = Sim(start=False)
        before = threads()
        print(sim.device_count())
        sim.call("init")
        stream = sim.stream()
        print(threads() - before)
        block = sim.malloc(0, 4)
        sim.fill(block, 0, 4, stream)
        sim.synchronize(stream)
        print(threads() - before)
        """,
        TEFL_SIM_DEVICES="5",
    ).split() == ["5", "0", "1"]


def test_calls_before_the_start_are_errors(python):
    code = """
        from sim_driver import Sim
        sim = Sim(start=False)
        try: sim.malloc(0, 8)
        except RuntimeError as error: print(error)
        sim.call("init")
        try: sim.call("init")
        except RuntimeError as error: print(error)
        """
    assert python(code).splitlines() == [
        "malloc: the runtime has not been started: call init first",
        "init: init was called twice",
    ]


def test_the_process_ends_cleanly_with_streams_at_work(fresh_python, tmp_path, image):
    (tmp_path / "image").write_bytes(image)
    fresh_python(
        f"""
        from ctypes import CDLL, c_void_p
        from sim_driver import Sim
        sim, libc = Sim(), CDLL(None)
        libc.calloc.restype = c_void_p
        never = libc.calloc(1, 4)  # not Python's memory: the kernels look at it until the process is gone
        module = sim.load(0, open({str(tmp_path / "image")!r}, "rb").read())
        for stream in (sim.stream(), sim.default_stream()):
            sim.launch(sim.function(module, "gate"), stream, c_void_p(never))
        """,
        timeout=30,
    )


def test_a_forked_child_is_refused_and_ends(python):
    out = python(
        """
        import os
        from sim_driver import Sim, SimError
        sim = Sim()
        stream, block = sim.stream(), sim.malloc(0, 4)
        sim.fill(block, 0, 4, stream)
        pid = os.fork()
        if pid == 0:
            try:
                sim.synchronize(stream)
            except SimError as error:
                print(error, flush=True)
            raise SystemExit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        sim.synchronize(stream)
        """,
        timeout=30,
    )
    assert out.splitlines() == [
        "stream_synchronize: the simulator was started before this process was forked",
        "7",
    ]


def test_a_child_forked_before_the_start_works(python):
    python(
        """
        import os
        from sim_driver import Sim
        sim = Sim(start=False)
        pid = os.fork()
        sim.call("init")
        stream, block = sim.stream(), sim.malloc(0, 4)
        sim.fill(block, 0, 4, stream)
        sim.synchronize(stream)
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
        """,
        timeout=30,
    )


def test_the_library_exports_the_one_symbol_and_needs_nothing_of_torch_or_python():
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True
    ).stdout
    ours = {line.split()[-1] for line in symbols.splitlines() if " T " in line}
    assert ours - {"_init", "_fini"} == {"tefl_provider_get"}
    needed = subprocess.run(["ldd", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    assert not any(word in needed for word in ("torch", "c10", "python"))
