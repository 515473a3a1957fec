"""Freed device memory is kept: for its stream at once, for others after their events, for nobody twice."""

from __future__ import annotations

import ctypes
import gc
import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

MIB = 1 << 20

pytestmark = pytest.mark.sim_only("holds streams by kernels of the simulator; on CUDA the cache is PyTorch's")


@pytest.fixture
def stats(maca):
    """A function index -> the allocator's statistics, from an empty cache."""
    gc.collect()
    maca.empty_cache()
    return maca.memory_stats


def bytes_on_device(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="maca:0")


@pytest.mark.parametrize("size", [1, 512, 4096, MIB, MIB + 1, 11 * MIB])
def test_freed_memory_is_served_again_without_asking_the_provider(stats, size):
    address = bytes_on_device(size).data_ptr()
    asked, given_back = (stats(0)[name] for name in ("num_device_alloc", "num_device_free"))
    for _ in range(10):
        assert bytes_on_device(size).data_ptr() == address
    assert stats(0)["num_device_alloc"] == asked
    assert stats(0)["num_device_free"] == given_back


def test_live_blocks_do_not_overlap_and_are_aligned(stats):
    sizes = [1, 63, 512, 513, 5000, 70_000, MIB, MIB + 5, 3 * MIB, 15 * MIB] * 3
    tensors = [bytes_on_device(size) for size in sizes]
    del tensors[::2], sizes[::2]
    tensors += [bytes_on_device(size) for size in (100, 2 * MIB, 600_000)]
    ranges = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    assert all(start % 64 == 0 for start, _ in ranges)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def test_free_neighbours_are_joined_before_more_is_taken(stats):
    others = [bytes_on_device(512)]  # fill what is free between blocks that live since before
    asked = stats(0)["num_device_alloc"]
    while stats(0)["num_device_alloc"] == asked:
        others.append(bytes_on_device(512))
    small = [others.pop(), *(bytes_on_device(512) for _ in range(2 * MIB // 512 - 1))]  # a segment, full
    assert stats(0)["num_device_alloc"] == asked + 1
    reserved, pieces = stats(0)["reserved_bytes.all.current"], stats(0)["inactive_split.all.current"]
    del small
    assert stats(0)["inactive_split.all.current"] > pieces
    large = [bytes_on_device(MIB) for _ in range(2)]
    assert stats(0)["num_device_alloc"] == asked + 1
    assert stats(0)["reserved_bytes.all.current"] == reserved
    del large


def test_empty_cache_gives_back_what_no_tensor_uses(stats, maca):
    before, reserved = maca.mem_get_info(0)[0], maca.memory_reserved(0)
    kept = bytes_on_device(15 * MIB)
    del_me = bytes_on_device(11 * MIB)
    address = kept.data_ptr()
    kept.fill_(7)
    del del_me
    assert maca.memory_reserved(0) - reserved >= 26 * MIB
    torch.accelerator.empty_cache()
    assert maca.memory_reserved(0) - reserved == 15 * MIB
    assert before - maca.mem_get_info(0)[0] == 15 * MIB
    assert kept.data_ptr() == address
    assert kept.eq(7).all().item()


def test_streams_have_their_own_blocks(stats):
    address = bytes_on_device(4096).data_ptr()
    with torch.Stream("maca:0"):
        other = bytes_on_device(4096)
        assert other.data_ptr() != address
    assert bytes_on_device(4096).data_ptr() == address


def test_a_block_that_another_stream_uses_waits_for_that_stream(stats, closed, maca):
    side = torch.Stream("maca:0")
    x, out = torch.full((4096,), 5, dtype=torch.uint8, device="maca:0"), bytes_on_device(4096)
    address = x.data_ptr()
    gate = closed(side)
    with side:
        out.copy_(x)  # delayed by the gate
        x.record_stream(side)
    del x
    assert stats(0)["active.all.current"] == stats(0)["allocation.all.current"] + 1
    again = [torch.full((4096,), 9, dtype=torch.uint8, device="maca:0") for _ in range(8)]
    assert address not in [t.data_ptr() for t in again]
    gate.value = 1
    maca.synchronize(0)
    assert bytes_on_device(4096).data_ptr() == address
    assert out.eq(5).all().item()


def test_a_block_freed_with_work_in_its_own_stream_is_not_written_over(stats, closed, maca):
    side = torch.Stream("maca:0")
    with side:
        x, out = torch.full((4096,), 5, dtype=torch.uint8, device="maca:0"), bytes_on_device(4096)
    gate = closed(side)
    with side:
        out.copy_(x)
        address = x.data_ptr()
        del x
        again = bytes_on_device(4096)
        assert again.data_ptr() == address
        again.copy_(torch.full((4096,), 9, dtype=torch.uint8).pin_memory(), non_blocking=True)
    gate.value = 1
    maca.synchronize(0)
    assert out.eq(5).all().item()
    assert again.eq(9).all().item()


def test_a_freed_block_that_another_stream_uses_is_pending_in_a_snapshot(closed, maca):
    stream, x = torch.Stream("maca:0"), bytes_on_device(5 * MIB)
    address = x.data_ptr()
    x.record_stream(stream)
    closed(stream)
    del x
    blocks = [block for segment in maca.memory_snapshot() for block in segment["blocks"]]
    assert [b["state"] for b in blocks if b["address"] == address] == ["active_pending_free"]


def test_recording_the_own_stream_or_an_empty_tensor_changes_nothing(stats):
    x, empty = bytes_on_device(4096), bytes_on_device(0)
    address = x.data_ptr()
    for tensor in (x, empty):
        tensor.record_stream(torch.accelerator.current_stream(0))
    del x
    assert bytes_on_device(4096).data_ptr() == address


def test_empty_cache_waits_for_other_streams(stats, closed, maca):
    side = torch.Stream("maca:0")
    x = bytes_on_device(15 * MIB)
    with side:
        y = x + 1
        x.record_stream(side)
    reserved = maca.memory_reserved(0)
    del x, y
    maca.empty_cache()
    assert reserved - maca.memory_reserved(0) >= 30 * MIB
    assert stats(0)["active.all.current"] == stats(0)["allocation.all.current"]


def test_pinned_memory_is_kept_and_waits_for_copies(closed, maca):
    torch.accelerator.empty_host_cache()
    side = torch.Stream("maca:0")
    source = torch.full((4096,), 5, dtype=torch.uint8).pin_memory()
    with side:
        out = bytes_on_device(4096)
    address = source.data_ptr()
    gate = closed(side)
    with side:
        out.copy_(source, non_blocking=True)
    del source
    others = [torch.full((4096,), 9, dtype=torch.uint8).pin_memory() for _ in range(4)]
    assert address not in [t.data_ptr() for t in others]
    gate.value = 1
    maca.synchronize(0)
    assert out.eq(5).all().item()
    assert torch.empty(4096, dtype=torch.uint8, pin_memory=True).data_ptr() == address


def test_a_pinned_batch_dropped_right_after_its_copy_was_enqueued_arrives_whole(closed, maca):
    torch.accelerator.empty_host_cache()
    side = torch.Stream("maca:0")
    gate = closed(side)
    with side:
        moved = [
            batch.to("maca:0", non_blocking=True)  # enqueued behind what holds the stream
            for (batch,) in DataLoader(TensorDataset(torch.arange(64)), batch_size=16, pin_memory=True)
        ]
    kept = [torch.full((16,), -1).pin_memory() for _ in range(8)]
    assert not side.query()
    gate.value = 1
    maca.synchronize(0)
    assert torch.cat(moved).tolist() == list(range(64))
    del kept


def test_freed_pinned_memory_is_no_longer_known_as_pinned():
    pinned = torch.ones(1 << 12, pin_memory=True)
    assert pinned[5:].is_pinned()
    view = torch.frombuffer((ctypes.c_char * 64).from_address(pinned.data_ptr()), dtype=torch.uint8)
    assert view.is_pinned()
    address = pinned.data_ptr()
    del pinned, view
    stale = torch.frombuffer((ctypes.c_char * 64).from_address(address), dtype=torch.uint8)
    assert not stale.is_pinned()
