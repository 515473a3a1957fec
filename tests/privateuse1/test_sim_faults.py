"""Faults that the simulator is told to have, driven through the C table alone."""

from __future__ import annotations

import pytest

TRY = """
from ctypes import c_int32, c_void_p, addressof
from sim_driver import Sim, SimError
sim = Sim()
def attempt(work):
    try:
        work()
        return "ok"
    except SimError as error:
        return f"{error.status} {error}"
"""


def test_the_nth_call_of_a_function_fails_and_no_other(python):
    out = python(
        TRY + "print([attempt(lambda: sim.malloc(0, 8))[:1] for _ in range(7)])",
        TEFL_SIM_FAULTS="malloc:3,malloc:5",
    )
    assert out == "['o', 'o', '3', 'o', '3', 'o', 'o']"


def test_a_star_makes_every_nth_call_fail(python):
    out = python(
        TRY + "print([attempt(lambda: sim.stream())[:1] for _ in range(7)])",
        TEFL_SIM_FAULTS="stream_create:3*",
    )
    assert out == "['o', 'o', '6', 'o', 'o', '6', 'o']"


@pytest.mark.parametrize(
    ("fault", "call", "told"),
    [
        ("malloc:1", "sim.malloc(0, 8)", "3 malloc"),
        ("host_malloc:1", "sim._result(c_void_p, 'host_malloc', 8)", "3 host_malloc"),
        ("stream_sync:1", "sim.synchronize(sim.default_stream())", "5 stream_synchronize"),
        ("device_sync:1", "sim.call('device_synchronize', 0)", "5 device_synchronize"),
        ("event_sync:1", "sim.call('event_synchronize', sim.event())", "5 event_synchronize"),
        ("event_create:1", "sim.event()", "6 event_create"),
        ("memset_async:1", "sim.fill(sim.malloc(0, 4), 0, 4, sim.stream())", "6 memset_async"),
        ("memory_info:1", "sim.memory_info(0)", "6 memory_info"),
    ],
)
def test_a_fault_has_the_status_of_a_real_failure_and_names_its_origin(python, fault, call, told):
    out = python(TRY + f"print(attempt(lambda: {call}))", TEFL_SIM_FAULTS=fault)
    name = told.split()[1]
    assert out == f"{told}: a fault injected by TEFL_SIM_FAULTS into {name}"


def test_work_on_a_stream_fails_when_the_stream_gets_there(python):
    out = python(
        TRY
        + """
block, stream = sim.malloc(0, 4), sim.stream()
print(attempt(lambda: sim.fill(block, 1, 4, stream)), attempt(lambda: sim.fill(block, 2, 4, stream)))
print(attempt(lambda: sim.synchronize(stream)))
print(attempt(lambda: sim.synchronize(stream)))
out = c_int32(9)
print(attempt(lambda: sim.copy(c_void_p(addressof(out)), -1, block, 0, 4, stream)))
print(attempt(lambda: sim.synchronize(stream)), out.value)
""",
        TEFL_SIM_FAULTS="memset:2,memcpy:1",
    )
    assert out.splitlines() == [
        "ok ok",
        "5 stream_synchronize: the fill of 4 bytes on device 0 failed: a fault injected by TEFL_SIM_FAULTS",
        "ok",
        "ok",
        "5 stream_synchronize: the copy of 4 bytes from device 0 to the host failed: a fault injected by "
        "TEFL_SIM_FAULTS 9",
    ]


def test_a_hung_stream_says_what_it_is_at_and_leaves_the_others_alone(python):
    out = python(
        TRY
        + """
from ctypes import c_size_t, create_string_buffer
block, stream, other = sim.malloc(0, 4), sim.stream(), sim.stream()
sim.fill(block, 1, 4, stream)
sim.synchronize(stream)
sim.fill(block, 2, 4, stream)
text = create_string_buffer(64)
while not text.value:
    sim.call("stream_describe", stream, text, c_size_t(64))
print(sim.done(stream), text.value.decode())
short = create_string_buffer(8)
sim.call("stream_describe", stream, short, c_size_t(8))
print(short.value.decode())
sim.fill(sim.malloc(0, 4), 1, 4, other)
sim.synchronize(other)
sim.call("stream_describe", other, text, c_size_t(64))
print(repr(text.value.decode()))
""",
        TEFL_SIM_FAULTS="hang:2",
    )
    assert out.splitlines() == ["False the fill of 4 bytes on device 0", "the fil", "''"]


@pytest.mark.parametrize(
    "text", ["malloc", "malloc:0", "malloc:x", "mallocs:3", "malloc:3,", ":3", "malloc:*"]
)
def test_a_fault_that_cannot_be_read_is_quoted(python, text):
    out = python(
        TRY.replace("sim = Sim()", "sim = Sim(start=False)") + "print(attempt(lambda: sim.call('init')))",
        TEFL_SIM_FAULTS=text,
    )
    assert out.startswith(f"2 init: TEFL_SIM_FAULTS='{text}': want function:n separated by commas")


@pytest.mark.parametrize(
    "function", ["init", "device_count", "set_current_device", "stream_describe", "host_access_begin"]
)
def test_a_function_that_cannot_be_made_to_fail_is_named_as_such(python, function):
    out = python(
        TRY.replace("sim = Sim()", "sim = Sim(start=False)") + "print(attempt(lambda: sim.call('init')))",
        TEFL_SIM_FAULTS=f"{function}:1",
    )
    exceptions = out.partition("those of tefl_provider.h but ")[2]
    assert function in exceptions.partition(" and the collectives")[0].split(", ")
