"""The sim provider's launch table: binaries are shared libraries for the host."""

from __future__ import annotations

from ctypes import c_int32

from sim_driver import (
    INVALID,
    Kernels,
    fails,
    pointer,
)


def test_a_kernel_runs_once_for_each_block(sim, kernels):
    stream, results = sim.stream(), (c_int32 * 24)()
    kernels("index_blocks", stream, pointer(results), grid=(4, 3, 2))
    sim.synchronize(stream)
    assert list(results) == list(range(24))


def test_a_kernel_gets_its_block_memory(sim, kernels):
    stream, result = sim.stream(), c_int32(0)
    kernels("shared", stream, pointer(result), shared=1000)
    sim.synchronize(stream)
    assert result.value == 1000


def test_parameters_are_read_before_launch_returns(sim, kernels):
    stream, result, value = sim.stream(), c_int32(0), c_int32(11)
    flag = kernels.close(stream)
    kernels("store", stream, pointer(result), value)
    value.value = 99
    flag.value = 1
    sim.synchronize(stream)
    assert result.value == 11


def test_a_module_may_be_unloaded_while_its_kernels_are_enqueued(sim, image):
    kernels, stream, result = Kernels(sim, image, 0), sim.stream(), c_int32(0)
    flag = kernels.close(stream)
    kernels("store", stream, pointer(result), c_int32(4))
    sim.call("module_unload", kernels.module)
    flag.value = 1
    sim.synchronize(stream)
    assert result.value == 4
    with fails(INVALID, "not a live module"):
        sim.function(kernels.module, "store")


def test_wrong_launches_are_refused_with_what_is_wrong(sim, image, kernels):
    stream = sim.stream()
    with fails(INVALID, "shared library"):
        sim.load(0, b"this is no binary")
    with fails(INVALID, "no kernel 'missing'"):
        kernels("missing", stream)
    with fails(INVALID, "'store' takes 2 parameters, got 1"):
        kernels("store", stream, c_int32(1))
    with fails(INVALID, "dimension is 0"):
        kernels("fail", stream, c_int32(1), grid=(1, 0, 1))
    with fails(INVALID, "loaded on device 0, the stream belongs to device 1"):
        kernels("fail", sim.stream(1), c_int32(1))
