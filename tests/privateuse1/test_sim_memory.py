"""The sim provider's memory: counted, finite, copied in stream order, freed when nobody uses it."""

from __future__ import annotations

import ctypes
import threading
from ctypes import c_void_p

import pytest
from sim_driver import (
    HOST,
    INVALID,
    OUT_OF_MEMORY,
    Kernels,
    fails,
)


def test_memory_is_aligned_and_counted_per_device(sim):
    before = [sim.memory_info(device)[0] for device in (0, 1)]
    blocks = [sim.malloc(0, size) for size in (1, 63, 1000)]
    assert all(block.value % 64 == 0 for block in blocks)
    assert sim.memory_info(0)[0] == before[0] - 1064
    assert sim.memory_info(1)[0] == before[1]
    for block in blocks:
        sim.free(0, block)
    assert sim.memory_info(0)[0] == before[0]


def test_memory_is_freed_once_and_by_the_device_that_gave_it(sim):
    block = sim.malloc(0, 8)
    with fails(INVALID, "no allocation of device 1"):
        sim.free(1, block)
    sim.free(0, block)
    with fails(INVALID, "no allocation of device 0"):
        sim.free(0, block)


def test_copies_go_between_host_and_devices(sim):
    stream, blocks = sim.stream(0), [sim.malloc(device, 16) for device in (0, 1)]
    out = ctypes.create_string_buffer(16)
    sim.copy(blocks[0], 0, b"0123456789abcdef", HOST, 16, stream)
    sim.copy(blocks[1], 1, blocks[0], 0, 16, stream)
    sim.copy(c_void_p(blocks[0].value + 4), 0, blocks[1], 1, 4, stream)
    sim.copy(out, HOST, blocks[0], 0, 16, stream)
    sim.synchronize(stream)
    assert out.raw == b"0123012389abcdef"


def test_a_copy_runs_on_a_stream_of_one_of_its_devices(sim):
    block = sim.malloc(0, 4)
    with fails(INVALID, "the stream belongs to device 1"):
        sim.copy(block, 0, b"abcd", HOST, 4, sim.stream(1))


@pytest.mark.parametrize("user", [0, 1])
def test_free_waits_for_the_work_that_was_enqueued_before_it(sim, image, user):
    block, stream, out = sim.malloc(0, 4), sim.stream(user), sim.malloc(user, 4)
    sim.fill(block, 5, 4, sim.default_stream(0))
    sim.synchronize(sim.default_stream(0))
    flag = Kernels(sim, image, user).close(stream)
    sim.copy(out, user, block, 0, 4, stream)
    freeing = threading.Thread(target=sim.free, args=(0, block))
    freeing.start()
    freeing.join(0.05)
    assert freeing.is_alive()
    flag.value = 1
    freeing.join(30)
    assert not freeing.is_alive()
    assert ctypes.string_at(out.value, 4) == b"\5\5\5\5"


def test_a_capacity_is_kept_to_and_said_in_the_error(python):
    assert python(
        """
        from sim_driver import Sim, SimError
        sim = Sim()
        a = sim.malloc(0, 700 * 1024)
        try:
            sim.malloc(0, 400 * 1024)
        except SimError as error:
            print(error.status, error)
        sim.malloc(1, 1024 * 1024)
        sim.free(0, a)
        sim.malloc(0, 1024 * 1024)
        print(sim.memory_info(0), sim.properties(0).total_memory)
        """,
        TEFL_SIM_CAPACITY="1M",
    ).splitlines() == [
        f"{OUT_OF_MEMORY} malloc: 409600 bytes asked for, 331776 of 1048576 free",
        "(0, 1048576) 1048576",
    ]


@pytest.mark.parametrize(
    ("text", "capacity"), [("4096", 4096), ("3K", 3 << 10), ("2m", 2 << 20), ("1G", 1 << 30)]
)
def test_capacities_are_bytes_or_have_a_unit(python, text, capacity):
    code = "from sim_driver import Sim; print(Sim().memory_info(0)[1])"
    assert python(code, TEFL_SIM_CAPACITY=text) == str(capacity)
