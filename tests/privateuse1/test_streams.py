"""Streams and events are the provider's, real and asynchronous, current by thread and device."""

from __future__ import annotations

import threading

import pytest
import torch
from claimed import INDEX, OTHER

pytestmark = pytest.mark.usefixtures("maca")


def test_every_thread_starts_on_the_default_stream(maca):
    assert torch.accelerator.current_stream(INDEX).stream_id == 0
    seen = []
    with torch.Stream("maca:0"):
        thread = threading.Thread(target=lambda: seen.append(torch.accelerator.current_stream(0).stream_id))
        thread.start()
        thread.join()
        assert torch.accelerator.current_stream(0).stream_id != 0
    assert seen == [0]
    assert torch.accelerator.current_stream(0).stream_id == 0


def test_a_context_makes_a_stream_current_for_its_device_only():
    stream = torch.Stream("maca:1")
    assert stream.device == torch.device("maca:1")
    with stream:
        assert torch.accelerator.current_stream(INDEX) == stream
        assert torch.accelerator.current_stream(0).stream_id == 0


def test_new_streams_come_from_a_bounded_pool():
    ids = [torch.Stream("maca").stream_id for _ in range(70)]
    assert 2 <= len(set(ids)) <= 32
    assert ids[0] != ids[1]
    assert 0 not in ids


def test_a_stream_shows_the_providers_handle(maca):
    from tefl import _native

    stream = torch.Stream("maca:0")
    with stream:
        handle = _native.load().raw_stream(0)
    assert handle == stream.native_handle if hasattr(stream, "native_handle") else handle != 0
    assert _native.load().raw_stream(0) != handle


def test_work_in_one_stream_is_seen_after_its_event():
    for _ in range(20):
        side, data = torch.Stream("maca"), torch.zeros(1 << 18, device="maca")
        ones = torch.ones(1 << 18, device="maca")
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            data.copy_(ones)
            event = side.record_event()
        torch.accelerator.current_stream().wait_event(event)
        assert data.eq(1).all().item()


def test_an_operator_waits_for_the_current_streams_copies():
    for _ in range(20):
        stream = torch.Stream("maca")
        with stream:
            x = torch.zeros(1 << 18, device="maca")
            x.copy_(torch.ones(1 << 18, device="maca"))
            assert (x + 1).eq(2).all().item()


def test_events_answer_wait_and_measure():
    start, end = (torch.Event("maca", enable_timing=True) for _ in range(2))
    start.record()
    torch.zeros(1 << 20, device="maca").copy_(torch.ones(1 << 20, device="maca"))
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    assert torch.Event("maca").query()  # never recorded


def test_streams_answer_and_wait(maca):
    stream = torch.Stream("maca")
    with stream:
        torch.zeros(1 << 20, device="maca").copy_(torch.ones(1 << 20, device="maca"))
    stream.synchronize()
    assert stream.query()
    other = torch.Stream(OTHER)
    other.wait_stream(stream)
    maca.synchronize(OTHER)
    assert other.query()


def test_a_stream_of_another_device_type_cannot_be_current():
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        torch.accelerator.set_stream(torch.Stream("cpu"))


def test_a_tensor_may_be_recorded_on_a_stream():
    stream = torch.Stream("maca")
    x = torch.ones(4, device="maca")
    x.record_stream(stream)
    assert x.tolist() == [1, 1, 1, 1]


def test_backward_runs_in_the_forwards_stream():
    seen = []

    class Record(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(torch.accelerator.current_stream(grad.device))
            return grad

    x, stream = torch.ones(4, device=OTHER, requires_grad=True), torch.Stream(OTHER)
    with stream:
        y = Record.apply(x).sum()
    y.backward()
    assert seen == [stream]
