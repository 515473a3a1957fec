"""What a snapshot and a summary of device memory tell, and a process's share of it."""

from __future__ import annotations

import gc
import pickle
import re

import pytest
import torch
from torch.cuda import _memory_viz

MIB = 1 << 20


def segments_of(maca, index: int) -> list[dict]:
    return [segment for segment in maca.memory_snapshot() if segment["device"] == index]


def block_of(maca, tensor: torch.Tensor) -> dict:
    """Return the block that begins where the tensor's memory does."""
    blocks = [b for segment in segments_of(maca, tensor.device.index) for b in segment["blocks"]]
    (found,) = [block for block in blocks if block["address"] == tensor.untyped_storage().data_ptr()]
    return found


@pytest.fixture
def settled(maca):
    maca.init()
    gc.collect()
    maca.empty_cache()
    return maca


def test_a_tensor_is_a_block_with_what_was_asked_and_what_was_given(settled):
    x = torch.empty(1000, dtype=torch.uint8, device="maca:1")
    block = block_of(settled, x)
    assert (block["requested_size"], block["size"], block["state"]) == (1000, 1024, "active_allocated")


def test_a_freed_block_is_inactive_until_its_segment_goes(settled):
    x, kept = (torch.empty(1000, dtype=torch.uint8, device="maca:1") for _ in range(2))
    address = x.data_ptr()
    del x
    (state,) = [b["state"] for s in segments_of(settled, 1) for b in s["blocks"] if b["address"] == address]
    assert state == "inactive"
    del kept
    settled.empty_cache()
    assert address not in {b["address"] for s in segments_of(settled, 1) for b in s["blocks"]}


def test_segments_are_whole_and_their_sums_are_the_statistics(settled):
    sizes = (1, 700, MIB, 3 * MIB, 30 * MIB)
    kept = [torch.empty(size, dtype=torch.uint8, device="maca:1") for size in sizes]
    with torch.Stream("maca:1"):
        kept.append(torch.empty(99, dtype=torch.uint8, device="maca:1"))
    del kept[1]
    segments, stats = segments_of(settled, 1), settled.memory_stats(1)
    for segment in segments:
        ends = [block["address"] + block["size"] for block in segment["blocks"]]
        begins = [block["address"] for block in segment["blocks"]]
        assert [segment["address"], *ends] == [*begins, segment["address"] + segment["total_size"]]
    for key, name in (
        ("total_size", "reserved_bytes"),
        ("allocated_size", "allocated_bytes"),
        ("active_size", "active_bytes"),
        ("requested_size", "requested_bytes"),
    ):
        for pool in ("small", "large"):
            total = sum(segment[key] for segment in segments if segment["segment_type"] == pool)
            assert total == stats[f"{name}.{pool}_pool.current"], (key, pool)
    assert len(segments) == stats["segment.all.current"]
    assert len({segment["stream"] for segment in segments}) == 2


def test_a_snapshot_written_to_a_file_is_read_by_pytorchs_viewer(settled, tmp_path):
    kept = torch.empty(30 * MIB, dtype=torch.uint8, device="maca:1")
    settled._dump_snapshot(tmp_path / "snapshot.pickle")
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert "30.0MiB" in _memory_viz.segsum(snapshot).replace(" ", "")
    assert "<script" in _memory_viz.segment_plot(snapshot)
    del kept


def test_a_pool_to_choose_by_is_refused(maca):
    with pytest.raises(ValueError, match=r"mempool_id is \(0, 1\), want None"):
        maca.memory_snapshot((0, 1))


# -------------------------------------------------------------------------------------------- a summary --


def test_a_summary_tells_the_statistics_by_pool_or_in_short(settled):
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="maca:1")
    short, whole = settled.memory_summary(1, abbreviated=True), settled.memory_summary("maca:1")
    assert short.splitlines()[0].startswith("maca:1: out of memory ")
    (row,) = re.findall(r"^allocated {2,}(\S+ \w+)", whole, re.MULTILINE)
    assert row == f"{settled.memory_allocated(1) / MIB:.1f} MiB"
    assert len(whole.splitlines()) - 2 == 3 * (len(short.splitlines()) - 2)
    del kept


@pytest.mark.needs_two_devices
def test_statistics_come_nested_too(maca):
    flat, nested = maca.memory_stats(1), maca.memory_stats_as_nested_dict(1)
    assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"]
    assert nested["num_ooms"] == flat["num_ooms"]


# --------------------------------------------------------------------------------------------- a share --


def test_a_process_takes_no_more_than_its_share_and_is_told_why(python):
    out = python(
        """
import torch
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend("maca", "sim"))
m, MIB = torch.maca, 1 << 20
print(m.get_per_process_memory_fraction(), m.device_memory_used())
kept = torch.empty(30 * MIB, dtype=torch.uint8, device="maca")
m.set_per_process_memory_fraction(0.5)
print(m.get_per_process_memory_fraction(), m.get_per_process_memory_fraction(1))
other = torch.empty(20 * MIB, dtype=torch.uint8, device="maca")
del other  # cached, and given back for what does not fit beside it
larger = torch.empty(25 * MIB, dtype=torch.uint8, device="maca")
try: torch.empty(15 * MIB, dtype=torch.uint8, device="maca")
except torch.OutOfMemoryError as error: print(error)
print(torch.empty(40 * MIB, dtype=torch.uint8, device="maca:1").nbytes // MIB)
m.set_per_process_memory_fraction(1.0)
print(torch.empty(15 * MIB, dtype=torch.uint8, device="maca").nbytes // MIB, m.device_memory_used() // MIB)
""",
        TEFL_SIM_CAPACITY="128M",
    )
    first, set_, told, elsewhere, after = out.splitlines()
    assert (first, set_, elsewhere, after) == ("1.0 0", "0.5 1.0", "40", "15 70")
    assert told.startswith("maca out of memory. Tried to allocate 15.00 MiB on maca:0.")
    assert "(this process may take 64.00 MiB, by set_per_process_memory_fraction)" in told


@pytest.mark.parametrize(("fraction", "error"), [(2.0, ValueError), (-0.5, ValueError), (1, TypeError)])
def test_a_share_is_a_float_from_0_to_1(maca, fraction, error):
    with pytest.raises(error, match="fraction is"):
        maca.set_per_process_memory_fraction(fraction)
