"""What is counted about pinned host memory, under the names that torch.cuda documents."""

from __future__ import annotations

import gc
import re

import pytest
import torch
from claimed import ALIAS

pytestmark = pytest.mark.usefixtures("maca")

MIB = 1 << 20


empties = pytest.mark.skipif(
    not hasattr(torch.accelerator, "empty_host_cache"),
    reason="this PyTorch cannot empty the cache of a device",
)


@pytest.fixture(autouse=True)
def settled(maca):
    """Nothing of other tests changes meanwhile."""
    torch.empty(1, device="maca")  # before, PyTorch takes the device's caches for empty
    gc.collect()
    maca.synchronize()


def pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def test_the_names_are_those_that_torch_cuda_documents(maca):
    documented = set()
    for name, parts in re.findall(r'"(\w+)(?:\.\{([\w,]+)\})?"``', torch.cuda.host_memory_stats.__doc__):
        documented |= {f"{name}.{part}" for part in parts.split(",")} if parts else {name}
    assert "num_host_free" in documented
    assert set(maca.host_memory_stats()) == documented


def test_a_name_with_a_dot_is_a_dict_in_a_dict_of_the_nested_form(maca):
    nested, flat = maca.host_memory_stats_as_nested_dict(), maca.host_memory_stats()
    assert nested["active_bytes"]["peak"] == flat["active_bytes.peak"]
    assert nested["num_host_alloc"] == flat["num_host_alloc"]
    assert nested["host_alloc_time"].keys() == {"total", "max", "min", "count", "avg"}


@empties
def test_blocks_in_use_and_blocks_kept_are_counted_apart(maca):
    """A request is rounded up to a power of two."""
    torch.accelerator.empty_host_cache()

    def seen() -> dict[str, int]:
        names = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
        return {
            name: maca.host_memory_stats()[f"{name}.current"] - start[f"{name}.current"] for name in names
        }

    start = maca.host_memory_stats()
    x, y = pinned(MIB - 5), pinned(2 * MIB)
    both = {"allocations": 2, "allocated_bytes": 3 * MIB, "active_requests": 2, "active_bytes": 3 * MIB}
    assert seen() == both
    del y
    assert seen() == {**both, "active_requests": 1, "active_bytes": MIB}
    torch.accelerator.empty_host_cache()
    assert seen() == dict(zip(both, [1, MIB] * 2, strict=True))
    del x


@empties
def test_memory_that_the_cache_had_is_no_call_of_the_provider(maca):
    torch.accelerator.empty_host_cache()
    maca.reset_accumulated_host_memory_stats()
    for _ in range(3):
        pinned(4 * MIB)
    torch.accelerator.empty_host_cache()
    stats = maca.host_memory_stats()
    assert (stats["active_requests.allocated"], stats["active_requests.freed"]) == (3, 3)
    assert (stats["num_host_alloc"], stats["num_host_free"]) == (1, 1)
    assert (stats["host_alloc_time.count"], stats["host_free_time.count"]) == (1, 1)
    assert 0 <= stats["host_alloc_time.min"] <= stats["host_alloc_time.avg"] <= stats["host_alloc_time.max"]


def test_the_peak_starts_anew_from_what_is_in_use(maca):
    """By requests whose streams are done: before 2.13 PyTorch's CUDA allocator does not subtract freed bytes,
    and requests at the next one only."""
    blocks = [pinned(MIB) for _ in range(3)]
    there = [block.to("maca", non_blocking=True) for block in blocks]
    del blocks
    maca.synchronize()
    del there
    block = pinned(MIB)
    before = maca.host_memory_stats()
    assert before["active_requests.peak"] >= before["active_requests.current"] + 2
    if ALIAS == "cpu":
        assert before["active_bytes.peak"] >= before["active_bytes.current"] + 2 * MIB
    maca.reset_peak_host_memory_stats()
    after = maca.host_memory_stats()
    assert after["active_requests.peak"] == after["active_requests.current"]
    assert after["active_requests.current"] == before["active_requests.current"]
    assert after["active_bytes.peak"] == after["active_bytes.current"] == before["active_bytes.current"]
    del block


def test_a_block_is_in_use_until_the_streams_have_done_with_it(maca, closed):
    """As torch.cuda counts it."""
    stream = torch.Stream(device="maca")
    start = maca.host_memory_stats()["active_requests.current"]
    flag = closed(stream)
    x = pinned(MIB)
    with stream:
        there = x.to("maca", non_blocking=True)
    del x
    assert maca.host_memory_stats()["active_requests.current"] == start + 1
    flag.value = 1
    stream.synchronize()
    pinned(MIB)  # looks what is done
    assert maca.host_memory_stats()["active_requests.current"] == start
    del there


def test_before_the_device_is_used_there_is_nothing_to_tell(python):
    out = python("""
        import torch
        from tefl.privateuse1 import PrivateUse1Backend, register_backend
        register_backend(PrivateUse1Backend("maca", "sim"))
        print(torch.maca.host_memory_stats(), torch.maca.memory.host_memory_stats_as_nested_dict())
    """)
    assert out == "{} {}"
