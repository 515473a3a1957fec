"""The sim provider's streams and events, driven through the C table alone.

Asynchrony is tested without clocks: a kernel "gate" holds its stream until the test opens it.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_void_p

import pytest
from sim_driver import (
    HOST,
    INVALID,
    Kernels,
    fails,
    pointer,
)

# --------------------------------------------------------------------------------------------- streams


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


# ---------------------------------------------------------------------------------------------- events


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
