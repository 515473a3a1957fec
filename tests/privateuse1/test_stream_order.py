"""What waits for what, with a stream that is held until the test lets go of it."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("maca")

BYTES = 1 << 12


def filled(value: int, device: str) -> torch.Tensor:
    x = torch.full((BYTES,), value, dtype=torch.uint8, device=device)
    torch.accelerator.synchronize(x.device)
    return x


@pytest.mark.parametrize("waiting", ["maca:0", "maca:1"])
def test_work_after_an_event_of_a_held_stream_waits_on_any_device(closed, maca, waiting):
    source, target = filled(7, "maca:0"), filled(0, waiting)
    held, other = torch.Stream("maca:0"), torch.Stream(waiting)
    gate = closed(held)
    with held:
        event = torch.Event("maca:0")
        event.record(held)
    other.wait_event(event)
    with other:
        target.copy_(source, non_blocking=True)
    assert not event.query()
    assert not other.query()
    gate.value = 1
    other.synchronize()
    assert event.query()
    assert target.eq(7).all().item()


def test_a_stream_that_waits_for_another_waits_for_all_that_is_in_it(closed, maca):
    held, other = torch.Stream("maca:0"), torch.Stream("maca:0")
    gate = closed(held)
    event = held.record_event()
    other.wait_stream(held)
    assert not other.query()
    gate.value = 1
    other.synchronize()
    assert event.query()  # the stream itself may still be on its way from its last entry


def test_a_held_stream_holds_nobody_else(closed, maca):
    held, free = torch.Stream("maca:0"), torch.Stream("maca:0")
    closed(held)
    with free:
        x = torch.zeros(BYTES, dtype=torch.uint8, device="maca:0")
        x.copy_(torch.ones(BYTES, dtype=torch.uint8, device="maca:0"), non_blocking=True)
    free.synchronize()
    assert free.query()
    assert not held.query()


def test_an_event_recorded_in_the_current_stream_is_that_streams(closed, maca):
    held = torch.Stream("maca:0")
    gate = closed(held)
    with held:
        event = torch.Event("maca:0")
        event.record()
    assert not event.query()
    gate.value = 1
    event.synchronize()
    assert event.query()


@pytest.mark.parametrize("priority", [-1, 0])
def test_a_stream_of_a_priority_does_its_work(priority):
    stream = torch.Stream("maca:1", priority=priority)
    with stream:
        x = torch.arange(4, device="maca:1") * 2
    stream.synchronize()
    assert x.tolist() == [0, 2, 4, 6]
