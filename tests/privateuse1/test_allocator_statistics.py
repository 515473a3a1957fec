"""What is counted about device memory, against a model that counts by itself."""

from __future__ import annotations

import gc
import random
import threading

import pytest
import torch
from claimed import INDEX, OTHER

MIB = 1 << 20


def rounded(size: int) -> int:
    """What a request for `size` bytes counts as: blocks are multiples of 512."""
    return (size + 511) // 512 * 512


def settle(maca) -> None:
    """Start the runtime and give back what other tests left, also what waits for a stream."""
    maca.init()
    gc.collect()
    maca.empty_cache()


class Model:
    """Counts what a test allocates and frees."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.current = self.peak = self.requested = self.count = self.peak_count = 0

    def add(self, tensor: torch.Tensor) -> None:
        size = tensor.nbytes
        self.sizes[id(tensor)] = size
        self.current += rounded(size)
        self.requested += size
        self.count += size > 0
        self.peak, self.peak_count = max(self.peak, self.current), max(self.peak_count, self.count)

    def remove(self, tensor: torch.Tensor) -> None:
        size = self.sizes.pop(id(tensor))
        self.current -= rounded(size)
        self.requested -= size
        self.count -= size > 0


@pytest.mark.sim_only("CUDA's allocator splits by other rules, and counts what it does not split off")
@pytest.mark.parametrize("seed", range(4))
def test_current_and_peak_follow_a_model_of_random_allocations(maca, seed):
    settle(maca)
    maca.reset_peak_memory_stats(INDEX)
    start = maca.memory_stats(INDEX)
    model, live, choose = Model(), [], random.Random(seed)
    for _ in range(400):
        if live and choose.random() < 0.45:
            tensor = live.pop(choose.randrange(len(live)))
            model.remove(tensor)
            del tensor
        else:
            size = choose.choice([0, 1, 511, 512, 3000, 70_000, MIB, MIB + 1, 5 * MIB, 12 * MIB])
            live.append(torch.empty(size, dtype=torch.uint8, device=OTHER))
            model.add(live[-1])
    stats = maca.memory_stats(INDEX)

    def more(name: str, kind: str = "current") -> int:
        return stats[f"{name}.all.{kind}"] - start[f"{name}.all.current"]

    assert more("allocated_bytes") == more("active_bytes") == model.current
    assert more("allocated_bytes", "peak") == model.peak
    assert more("requested_bytes") == model.requested
    assert (more("allocation"), more("allocation", "peak")) == (model.count, model.peak_count)
    held_back = stats["reserved_bytes.all.current"] - stats["allocated_bytes.all.current"]
    assert held_back >= stats["inactive_split_bytes.all.current"] >= 0
    for name in ("allocated_bytes", "reserved_bytes", "active", "segment", "inactive_split"):
        pools = (stats[f"{name}.{pool}.current"] for pool in ("small_pool", "large_pool"))
        assert sum(pools) == stats[f"{name}.all.current"]


def test_the_named_functions_read_the_same_counts(maca):
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="maca:0")
    maca.reset_peak_memory_stats(0)
    assert maca.max_memory_allocated(0) == maca.memory_allocated(0) >= x.nbytes
    y = torch.empty(30 * MIB, dtype=torch.uint8, device="maca:0")
    with_both, reserved = maca.memory_allocated(0), maca.memory_reserved(0)
    del y
    maca.empty_cache()
    assert maca.max_memory_allocated(0) == with_both == maca.memory_allocated(0) + 30 * MIB
    assert maca.max_memory_reserved(0) >= reserved >= maca.memory_reserved(0) + 30 * MIB
    assert maca.memory_reserved(0) >= maca.memory_allocated(0)
    assert maca.memory_allocated(0) == torch.accelerator.memory_allocated(0)
    assert maca.memory_reserved(0) == torch.accelerator.memory_reserved(0)


def test_eight_threads_lose_no_write_and_leave_nothing(maca):
    settle(maca)
    before = [maca.memory_stats(index) for index in (0, 1)]
    wrong: list[str] = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        index = seed % 2
        stream = torch.Stream(f"maca:{index}") if seed % 4 > 1 else torch.accelerator.current_stream(index)
        live: list[tuple[torch.Tensor, int]] = []
        with stream:
            for turn in range(300):
                value = choose.randrange(100)
                size = choose.choice([1, 100, 5000, 300_000, MIB + 3])
                x = torch.full((size,), value, dtype=torch.uint8, device=f"maca:{index}")
                copy = torch.empty_like(x).copy_(x)  # in stream order
                live.append((copy if turn % 2 else x + 0, value))
                if len(live) > 6:
                    tensor, expected = live.pop(choose.randrange(len(live)))
                    if not tensor.eq(expected).all().item():
                        wrong.append(f"thread {seed}, turn {turn}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    maca.empty_cache()
    assert wrong == []
    for index in (0, 1):
        stats = maca.memory_stats(index)
        for name in ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "allocation"):
            assert stats[f"{name}.all.current"] == before[index][f"{name}.all.current"], name
