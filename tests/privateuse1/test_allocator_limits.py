"""A full device: what the allocator tries before it gives up, and what it says then."""

from __future__ import annotations

from textwrap import dedent

import pytest

pytestmark = pytest.mark.sim_only("a device with a capacity that the test sets")

MIB = 1 << 20

SETUP = """
import gc
import torch
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend("maca", "sim"))
MIB = 1 << 20

def take(size, device="maca:0"):
    return torch.empty(size, dtype=torch.uint8, device=device)
"""


def run(python, code: str, capacity: str) -> list[str]:
    return python(SETUP + dedent(code), TEFL_SIM_CAPACITY=capacity).splitlines()


def test_out_of_memory_says_what_was_asked_and_what_there_is(python):
    out = run(
        python,
        """
        kept = torch.zeros(1 << 20, dtype=torch.uint8, device="maca")
        for make in (
            lambda: take(8 * MIB),
            lambda: torch.zeros(1 << 18, device="maca").repeat(4),
            lambda: take(3 << 40),
            lambda: take((1 << 62) + 1),
        ):
            try:
                make()
            except torch.OutOfMemoryError as error:
                print(error)
        gc.collect()
        print(torch.accelerator.memory_allocated(0), torch.accelerator.memory_stats(0)["num_ooms"])
        print((kept + 1).max().item())
        """,
        "4M",
    )
    assert out[0].startswith(
        "maca out of memory. Tried to allocate 8.00 MiB on maca:0. Of its 4.00 MiB, 2.00 MiB are free; "
        "this process has reserved 2.00 MiB, of which its tensors hold 1.00 MiB. ("
    )
    assert out[1].startswith("maca out of memory. Tried to allocate 4.00 MiB on maca:0.")
    assert "Tried to allocate 3.00 TiB" in out[2]
    assert "Tried to allocate 4.00 EiB" in out[3]
    assert out[4:] == [f"{MIB} 4", "1"]


def test_the_cache_is_given_back_before_memory_is_refused(python):
    assert run(
        python,
        """
        for size in (12, 13, 14, 11):
            take(size * MIB)
        with torch.Stream("maca:0"):
            take(4 * MIB)
        print(take(30 * MIB).nbytes // MIB)
        stats = torch.accelerator.memory_stats(0)
        print(stats["num_alloc_retries"] > 0, stats["num_ooms"])
        """,
        "32M",
    ) == ["30", "True 0"]


def test_a_segment_is_no_larger_than_there_is_room_for(python):
    assert run(
        python,
        """
        tensors = [take(2 * MIB) for _ in range(2)]
        print(torch.accelerator.memory_reserved(0) // MIB)
        """,
        "5M",
    ) == ["4"]


def test_the_whole_of_a_fragmented_device_can_be_used_again(python):
    assert run(
        python,
        """
        tensors = [take(3 * MIB + 7 * i) for i in range(8)] + [take(200_000) for _ in range(20)]
        del tensors[::2]
        gc.collect()
        tensors += [take(MIB + 1) for _ in range(6)]
        del tensors
        whole = take(64 * MIB)
        whole.fill_(3)
        print(whole.cpu().eq(3).all().item(), torch.accelerator.memory_reserved(0) // MIB)
        """,
        "64M",
    ) == ["True 64"]


def test_memory_that_other_streams_use_is_waited_for_before_memory_is_refused(python):
    assert run(
        python,
        """
        side = torch.Stream("maca:0")
        x = take(20 * MIB)
        with side:
            x.fill_(1)
            y = take(1)
            y.copy_(x[:1])
        x.record_stream(side)
        del x
        print(take(25 * MIB).nbytes // MIB, y.item())
        """,
        "32M",
    ) == ["25 1"]


def test_a_full_device_leaves_the_other_alone(python):
    assert run(
        python,
        """
        full = take(4 * MIB)
        try:
            take(1)
        except torch.OutOfMemoryError as error:
            print("maca:0" in str(error), "Tried to allocate 1 bytes" in str(error))
        print(take(3 * MIB, "maca:1").device.index)
        """,
        "4M",
    ) == ["True True", "1"]


def test_a_forked_child_frees_nothing_and_its_parent_goes_on(python):
    assert run(
        python,
        """
        import os
        x = torch.ones(1 << 20, device="maca")
        before = torch.accelerator.memory_allocated(0)
        child = os.fork()
        if child == 0:
            del x
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(torch.accelerator.memory_allocated(0) == before, x.sum().item())
        """,
        "64M",
    ) == ["0", f"True {float(MIB)}"]
