"""The sim provider, driven through the C table alone: streams, events, memory, launch, errors.

Asynchrony is tested without clocks: a kernel "gate" holds its stream until the test opens it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from ctypes import c_int32, c_void_p

import pytest
import sim_driver
from sim_driver import DEVICE, HOST, INVALID, LIBRARY, OUT_OF_MEMORY, Sim, SimError


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Sim:
    """The provider from a copy of its library: another instance than the device of this process may have."""
    return Sim(shutil.copy(LIBRARY, tmp_path_factory.mktemp("sim")))


@pytest.fixture(scope="module")
def image(compile_library) -> bytes:
    source = (sim_driver.ROOT / "tests" / "privateuse1" / "sim_kernels.c").read_text()
    return compile_library("sim_kernels", source, "-O1", "-Wall", "-Wextra", "-Werror").read_bytes()


class Kernels:
    """The test kernels on one device, and host memory for them."""

    def __init__(self, sim: Sim, image: bytes, device: int) -> None:
        self.sim, self.module = sim, sim.load(device, image)

    def __call__(self, name: str, stream: c_void_p, *values, **shape) -> None:
        self.sim.launch(self.sim.function(self.module, name), stream, *values, **shape)

    def close(self, stream: c_void_p) -> c_int32:
        """Hold `stream` until the flag that is returned becomes 1."""
        flag = c_int32(0)
        self("gate", stream, pointer(flag))
        return flag


@pytest.fixture
def kernels(sim, image) -> Kernels:
    return Kernels(sim, image, 0)


def pointer(thing) -> c_void_p:
    return c_void_p(ctypes.addressof(thing))


def fails(status: int, match: str):
    class Expect:
        def __enter__(self):
            self.raised = pytest.raises(SimError, match=match)
            self.info = self.raised.__enter__()

        def __exit__(self, *exc):
            out = self.raised.__exit__(*exc)
            assert self.info.value.status == status
            return out

    return Expect()


# ------------------------------------------------------------------------------------------------ streams


def test_work_is_enqueued_without_waiting_and_done_in_order(sim, kernels):
    stream, result = sim.stream(), c_int32(0)
    flag = kernels.close(stream)
    kernels("store", stream, pointer(result), c_int32(1))
    kernels("store", stream, pointer(result), c_int32(2))
    assert not sim.done(stream)
    assert result.value == 0
    flag.value = 1
    sim.synchronize(stream)
    assert sim.done(stream)
    assert result.value == 2


def test_copies_and_fills_wait_for_the_work_before_them(sim, kernels):
    stream, memory = sim.stream(), sim.malloc(0, 4)
    sim.fill(memory, 7, 4, stream)
    flag = kernels.close(stream)
    sim.fill(memory, 1, 4, stream)
    out = c_int32(0)
    sim.copy(pointer(out), HOST, memory, 0, 4, stream)
    assert not sim.done(stream)
    assert out.value == 0
    flag.value = 1
    sim.synchronize(stream)
    assert out.value == 0x01010101


def test_two_streams_of_a_device_run_at_the_same_time(sim, kernels):
    held, opener = sim.stream(), sim.stream()
    flag = kernels.close(held)
    kernels("store", opener, pointer(flag), c_int32(1))  # only another stream can let the first one go
    sim.synchronize(held)
    assert flag.value == 1


def test_the_default_stream_is_one_and_does_not_order_the_others(sim, kernels):
    default = sim.default_stream(0)
    assert default.value == sim.default_stream(0).value != sim.default_stream(1).value
    flag, other, result = kernels.close(default), sim.stream(), c_int32(0)
    kernels("store", other, pointer(result), c_int32(5))
    sim.synchronize(other)
    assert result.value == 5
    assert not sim.done(default)
    flag.value = 1
    sim.synchronize(default)


def test_synchronising_a_device_waits_for_all_its_streams_and_no_others(sim, image, kernels):
    streams, results = [sim.stream() for _ in range(3)], (c_int32 * 3)()
    for i, stream in enumerate(streams):
        kernels("nap_ms", stream, c_int32(5))
        kernels("store", stream, c_void_p(ctypes.addressof(results) + 4 * i), c_int32(i + 1))
    elsewhere = sim.stream(1)
    flag = Kernels(sim, image, 1).close(elsewhere)
    sim.call("device_synchronize", 0)
    assert list(results) == [1, 2, 3]
    assert not sim.done(elsewhere)
    flag.value = 1
    sim.synchronize(elsewhere)


def test_priorities_lie_in_the_range_and_zero_is_in_it(sim):
    least, greatest = sim.priority_range()
    assert least >= 0 >= greatest
    assert least > greatest
    for priority in range(greatest, least + 1):
        sim.call("stream_destroy", sim.stream(priority=priority))
    for outside in (least + 1, greatest - 1):
        with fails(INVALID, f"priority {outside} is outside {greatest} .. {least}"):
            sim.stream(priority=outside)


def test_a_destroyed_stream_finishes_its_work_and_its_handle_is_refused(sim, kernels):
    stream, result, done = sim.stream(), c_int32(0), sim.event()
    flag = kernels.close(stream)
    kernels("store", stream, pointer(result), c_int32(3))
    sim.call("event_record", done, stream)
    sim.call("stream_destroy", stream)
    with fails(INVALID, "not a live stream"):
        sim.synchronize(stream)
    flag.value = 1
    sim.call("event_synchronize", done)
    assert result.value == 3


def test_a_default_stream_cannot_be_destroyed(sim):
    with fails(INVALID, "default stream"):
        sim.call("stream_destroy", sim.default_stream())


# ------------------------------------------------------------------------------------------------- events


def test_an_event_is_done_when_the_work_before_it_is(sim, kernels):
    stream, event = sim.stream(), sim.event()
    flag = kernels.close(stream)
    sim.call("event_record", event, stream)
    assert not sim.event_done(event)
    flag.value = 1
    sim.call("event_synchronize", event)
    assert sim.event_done(event)


def test_an_event_never_recorded_counts_as_done(sim):
    event, stream = sim.event(), sim.stream()
    assert sim.event_done(event)
    sim.call("event_synchronize", event)
    sim.call("stream_wait_event", stream, event)
    sim.synchronize(stream)


@pytest.mark.parametrize("waiting_device", [0, 1])
def test_a_stream_waits_for_an_event_of_another_stream_or_device(sim, image, kernels, waiting_device):
    first, second, event, result = sim.stream(), sim.stream(waiting_device), sim.event(), c_int32(0)
    flag = kernels.close(first)
    sim.call("event_record", event, first)
    sim.call("stream_wait_event", second, event)
    Kernels(sim, image, waiting_device)("store", second, pointer(result), c_int32(9))
    assert not sim.done(second)
    assert result.value == 0
    flag.value = 1
    sim.synchronize(second)
    assert sim.event_done(event)
    assert result.value == 9


def test_a_wait_is_for_the_record_before_it_though_the_event_moves_on_or_dies(sim, kernels):
    first, second, event = sim.stream(), sim.stream(), sim.event()
    early = kernels.close(first)
    sim.call("event_record", event, first)
    sim.call("stream_wait_event", second, event)
    late = kernels.close(first)
    sim.call("event_record", event, first)
    sim.call("event_destroy", event)
    early.value = 1
    sim.synchronize(second)
    assert not sim.done(first)
    late.value = 1
    sim.synchronize(first)


def test_events_time_the_work_between_them(sim, kernels):
    stream, start, end = sim.stream(), sim.event(timing=True), sim.event(timing=True)
    sim.call("event_record", start, stream)
    kernels("nap_ms", stream, c_int32(20))
    sim.call("event_record", end, stream)
    sim.synchronize(stream)
    assert sim.elapsed_ms(start, end) >= 20
    assert sim.elapsed_ms(end, start) == -sim.elapsed_ms(start, end)


def test_times_are_refused_without_timing_before_the_end_or_across_devices(sim, kernels):
    stream, timed, untimed = sim.stream(), sim.event(timing=True), sim.event()
    other, other_stream = sim.event(1, timing=True), sim.stream(1)
    for event, on in ((timed, stream), (untimed, stream), (other, other_stream)):
        sim.call("event_record", event, on)
        sim.synchronize(on)
    with fails(INVALID, "the end event was created without timing"):
        sim.elapsed_ms(timed, untimed)
    with fails(INVALID, "different devices"):
        sim.elapsed_ms(timed, other)
    flag = kernels.close(stream)
    sim.call("event_record", timed, stream)
    with fails(INVALID, "the start event is not done"):
        sim.elapsed_ms(timed, timed)
    flag.value = 1
    sim.synchronize(stream)


def test_an_event_is_recorded_only_on_its_own_device(sim):
    with fails(INVALID, "an event of device 0 cannot be recorded on a stream of device 1"):
        sim.call("event_record", sim.event(0), sim.stream(1))


# ------------------------------------------------------------------------------------------------- memory


def test_memory_is_aligned_and_counted_per_device(sim):
    before = [sim.memory_info(device)[0] for device in (0, 1)]
    blocks = [sim.malloc(0, size) for size in (1, 63, 1000)]
    assert all(block.value % 64 == 0 for block in blocks)
    assert sim.memory_info(0)[0] == before[0] - 1064
    assert sim.memory_info(1)[0] == before[1]
    for block in blocks:
        sim.free(0, block)
    assert sim.memory_info(0)[0] == before[0]


def test_memory_is_freed_once_and_by_the_device_that_gave_it(sim):
    block = sim.malloc(0, 8)
    with fails(INVALID, "no allocation of device 1"):
        sim.free(1, block)
    sim.free(0, block)
    with fails(INVALID, "no allocation of device 0"):
        sim.free(0, block)


def test_copies_go_between_host_and_devices(sim):
    stream, blocks = sim.stream(0), [sim.malloc(device, 16) for device in (0, 1)]
    out = ctypes.create_string_buffer(16)
    sim.copy(blocks[0], 0, b"0123456789abcdef", HOST, 16, stream)
    sim.copy(blocks[1], 1, blocks[0], 0, 16, stream)
    sim.copy(c_void_p(blocks[0].value + 4), 0, blocks[1], 1, 4, stream)
    sim.copy(out, HOST, blocks[0], 0, 16, stream)
    sim.synchronize(stream)
    assert out.raw == b"0123012389abcdef"


def test_a_copy_runs_on_a_stream_of_one_of_its_devices(sim):
    block = sim.malloc(0, 4)
    with fails(INVALID, "the stream belongs to device 1"):
        sim.copy(block, 0, b"abcd", HOST, 4, sim.stream(1))


@pytest.mark.parametrize("user", [0, 1])
def test_free_waits_for_the_work_that_was_enqueued_before_it(sim, image, user):
    block, stream, out = sim.malloc(0, 4), sim.stream(user), sim.malloc(user, 4)
    sim.fill(block, 5, 4, sim.default_stream(0))
    sim.synchronize(sim.default_stream(0))
    flag = Kernels(sim, image, user).close(stream)
    sim.copy(out, user, block, 0, 4, stream)
    freeing = threading.Thread(target=sim.free, args=(0, block))
    freeing.start()
    freeing.join(0.05)
    assert freeing.is_alive()
    flag.value = 1
    freeing.join(30)
    assert not freeing.is_alive()
    assert ctypes.string_at(out.value, 4) == b"\5\5\5\5"


def test_a_capacity_is_kept_to_and_said_in_the_error(python):
    assert python(
        """
        from sim_driver import Sim, SimError
        sim = Sim()
        a = sim.malloc(0, 700 * 1024)
        try:
            sim.malloc(0, 400 * 1024)
        except SimError as error:
            print(error.status, error)
        sim.malloc(1, 1024 * 1024)
        sim.free(0, a)
        sim.malloc(0, 1024 * 1024)
        print(sim.memory_info(0), sim.properties(0).total_memory)
        """,
        TEFL_SIM_CAPACITY="1M",
    ).splitlines() == [
        f"{OUT_OF_MEMORY} malloc: 409600 bytes asked for, 331776 of 1048576 free",
        "(0, 1048576) 1048576",
    ]


@pytest.mark.parametrize(
    ("text", "capacity"), [("4096", 4096), ("3K", 3 << 10), ("2m", 2 << 20), ("1G", 1 << 30)]
)
def test_capacities_are_bytes_or_have_a_unit(python, text, capacity):
    code = "from sim_driver import Sim; print(Sim().memory_info(0)[1])"
    assert python(code, TEFL_SIM_CAPACITY=text) == str(capacity)


# ------------------------------------------------------------------------------------------------- launch


def test_a_kernel_runs_once_for_each_block(sim, kernels):
    stream, results = sim.stream(), (c_int32 * 24)()
    kernels("index_blocks", stream, pointer(results), grid=(4, 3, 2))
    sim.synchronize(stream)
    assert list(results) == list(range(24))


def test_a_kernel_gets_its_block_memory(sim, kernels):
    stream, result = sim.stream(), c_int32(0)
    kernels("shared", stream, pointer(result), shared=1000)
    sim.synchronize(stream)
    assert result.value == 1000


def test_parameters_are_read_before_launch_returns(sim, kernels):
    stream, result, value = sim.stream(), c_int32(0), c_int32(11)
    flag = kernels.close(stream)
    kernels("store", stream, pointer(result), value)
    value.value = 99
    flag.value = 1
    sim.synchronize(stream)
    assert result.value == 11


def test_a_module_may_be_unloaded_while_its_kernels_are_enqueued(sim, image):
    kernels, stream, result = Kernels(sim, image, 0), sim.stream(), c_int32(0)
    flag = kernels.close(stream)
    kernels("store", stream, pointer(result), c_int32(4))
    sim.call("module_unload", kernels.module)
    flag.value = 1
    sim.synchronize(stream)
    assert result.value == 4
    with fails(INVALID, "not a live module"):
        sim.function(kernels.module, "store")


def test_wrong_launches_are_refused_with_what_is_wrong(sim, image, kernels):
    stream = sim.stream()
    with fails(INVALID, "shared library"):
        sim.load(0, b"this is no binary")
    with fails(INVALID, "no kernel 'missing'"):
        kernels("missing", stream)
    with fails(INVALID, "'store' takes 2 parameters, got 1"):
        kernels("store", stream, c_int32(1))
    with fails(INVALID, "dimension is 0"):
        kernels("fail", stream, c_int32(1), grid=(1, 0, 1))
    with fails(INVALID, "loaded on device 0, the stream belongs to device 1"):
        kernels("fail", sim.stream(1), c_int32(1))


# ------------------------------------------------------------------------------------------------- errors


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


# ----------------------------------------------------------------------------------------------- process


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
        from ctypes import c_int32, c_void_p, addressof
        from sim_driver import Sim
        sim, never = Sim(), c_int32(0)
        module = sim.load(0, open({str(tmp_path / "image")!r}, "rb").read())
        for stream in (sim.stream(), sim.default_stream()):
            sim.launch(sim.function(module, "gate"), stream, c_void_p(addressof(never)))
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
