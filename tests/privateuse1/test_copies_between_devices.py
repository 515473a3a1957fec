"""Copies between devices on side streams: values and order, with streams that are held up."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest
import torch
from sim_driver import Kernels, Sim, pointer

pytestmark = [pytest.mark.usefixtures("maca"), pytest.mark.needs_two_devices]

COUNT = 1 << 12
PAIRS = [("maca:0", "maca:1"), ("maca:1", "maca:0"), ("maca:0", "cpu"), ("cpu", "maca:1")]


@pytest.fixture
def hold(maca, image: bytes) -> Iterator[Callable[[torch.Stream], Callable[[], None]]]:
    """Hold a stream of the claimed device; returns what lets it go. All are let go at the end."""
    torch.zeros(1, device="maca:0"), torch.zeros(1, device="maca:1")
    sim = Sim(start=False)  # the library that this process's device is made of
    kernels = [Kernels(sim, image, index) for index in range(2)]
    flags: list[ctypes.c_int32] = []

    def close(stream: torch.Stream) -> Callable[[], None]:
        flag = ctypes.c_int32(0)
        flags.append(flag)
        index = stream.device.index
        with stream:
            raw = ctypes.c_void_p(raw_stream(index))
        kernels[index]("gate", raw, pointer(flag))
        return lambda: setattr(flag, "value", 1)

    yield close
    for flag in flags:
        flag.value = 1
    for index in range(2):
        maca.synchronize(index)


def raw_stream(index: int) -> int:
    from tefl.privateuse1 import raw_stream

    return raw_stream(index)


@pytest.fixture
def streams() -> tuple[torch.Stream, torch.Stream]:
    """A side stream of each device."""
    return torch.Stream(device="maca:0"), torch.Stream(device="maca:1")


def filled(value: float, device: str) -> torch.Tensor:
    return torch.full((COUNT,), value, device=device)


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
def test_values_arrive_from_side_streams(streams, pair: tuple[str, str], non_blocking: bool) -> None:
    with streams[0], streams[1]:
        source = torch.arange(COUNT, dtype=torch.float32).to(pair[0])
        moved = source.to(pair[1], non_blocking=non_blocking)
        as_half = source.to(pair[1], torch.float16, non_blocking=non_blocking)
        every_other = torch.zeros(COUNT, device=pair[1])
        every_other[::2].copy_(source[::2], non_blocking=non_blocking)
        if pair[1] == "cpu":
            streams[0].synchronize()
        wanted = torch.arange(COUNT, dtype=torch.float32)
        torch.testing.assert_close(moved.cpu(), wanted, rtol=0, atol=0)
        torch.testing.assert_close(as_half.cpu(), wanted.half(), rtol=0, atol=0)
        torch.testing.assert_close(every_other.cpu(), wanted * (wanted % 2 == 0), rtol=0, atol=0)


def test_the_copy_waits_for_the_sources_stream_and_the_targets_stream_for_the_copy(hold, streams) -> None:
    new, source, target = filled(7, "maca:0"), filled(0, "maca:0"), filled(1, "maca:1")
    torch.maca.synchronize(0), torch.maca.synchronize(1)
    let_go = hold(streams[0])
    with streams[0], streams[1]:
        source.copy_(new)  # enqueued behind the gate
        target.copy_(source, non_blocking=True)
    assert not streams[0].query()
    assert not streams[1].query()  # whoever reads the target there comes after the copy
    let_go()
    streams[1].synchronize()
    assert target.eq(7).all().item()


def test_the_copy_waits_for_readers_of_the_target(hold, streams) -> None:
    source, target, seen = filled(7, "maca:0"), filled(1, "maca:1"), filled(0, "maca:1")
    torch.maca.synchronize(0), torch.maca.synchronize(1)
    let_go = hold(streams[1])
    with streams[0], streams[1]:
        seen.copy_(target)  # reads the old values, behind the gate
        target.copy_(source, non_blocking=True)
    assert not streams[0].query()
    let_go()
    streams[0].synchronize(), streams[1].synchronize()
    assert seen.eq(1).all().item()
    assert target.eq(7).all().item()


def test_another_stream_of_the_target_is_not_held_up(hold, streams) -> None:
    source, target = filled(7, "maca:0"), filled(1, "maca:1")
    torch.maca.synchronize(0), torch.maca.synchronize(1)
    let_go = hold(streams[0])
    with streams[0], streams[1]:
        target.copy_(source, non_blocking=True)
    bystander = torch.Stream(device="maca:1")
    other = filled(2, "maca:1")
    with bystander:
        assert (other + 1).eq(3).all().item()
    assert not streams[1].query()
    let_go()
    streams[1].synchronize()


@pytest.mark.parametrize(
    "pair", [("maca:0", "maca:1"), ("maca:0", "cpu"), ("cpu", "maca:1")], ids=" to ".join
)
def test_a_staging_buffer_lives_until_its_copy_is_done(streams, pair: tuple[str, str]) -> None:
    with streams[0], streams[1]:
        results = []
        for step in range(20):
            source = torch.full((64, 1024), float(step)).to(pair[0])
            target = torch.zeros(1024, 64, dtype=torch.float64).to(pair[1])
            target.copy_(source.t(), non_blocking=True)  # converts and transposes: by a buffer in between
            (
                torch.full((64, 1024), -1.0).to(pair[0]),
                torch.full((64, 1024), -1.0).to(pair[1]),
            )  # would reuse it
            results.append(target)
        if pair[1] == "cpu":
            streams[0].synchronize()
        for step, result in enumerate(results):
            assert result.eq(step).all().item()


@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
def test_a_copy_leaves_the_current_device_and_streams(maca, streams, pair: tuple[str, str]) -> None:
    with torch.device("maca:1"), maca.device(1), streams[1]:
        torch.ones(3, device=pair[0]).to(pair[1], torch.float64)
        assert maca.current_device() == 1
        assert maca.current_stream(1) == streams[1]
    assert maca.current_device() == 0
