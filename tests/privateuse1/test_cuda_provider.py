"""The cuda provider's C table: on a driver made for the test, and on NVIDIA's where the run is on a GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

PRELUDE = """
import ctypes, os, threading
from ctypes import byref, c_int32, c_void_p
from pathlib import Path
import sim_driver
from sim_driver import Sim, SimError
LIBRARY = sim_driver.LIBRARY.with_name("tefl_cuda.so")

def told(call, *arguments):
    try:
        call(*arguments)
    except SimError as error:
        return error.status, str(error)
    return "no error"

def bytes_of(gpu, pointer, size, stream):
    host = ctypes.create_string_buffer(size)
    gpu.copy(host, sim_driver.HOST, pointer, 0, size, stream)
    gpu.synchronize(stream)
    return host.raw
"""


@pytest.fixture(scope="session")
def fake(compile_library):
    """The folder of a driver and a management library that are made for the tests."""
    source = (Path(__file__).parent / "fake_cuda.c").read_text()
    library = compile_library("libcuda", source, "-Wall", "-Wno-unused-parameter")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (library.parent / name).symlink_to(library)
    return library.parent


@pytest.fixture
def on_fake(fresh_python, fake):
    """Runs code with the driver made for the tests."""

    def run(code: str, **environment: str) -> list[str]:
        environment = {"LD_LIBRARY_PATH": str(fake), "CUDA_VISIBLE_DEVICES": "", **environment}
        if not environment["CUDA_VISIBLE_DEVICES"]:
            code = 'import os; os.environ.pop("CUDA_VISIBLE_DEVICES")\n' + code
        return fresh_python(PRELUDE + code, **environment).splitlines()

    return run


@pytest.fixture
def on_driver(request, on_fake, fresh_python):
    """Runs code with NVIDIA's driver in a run on the cuda provider, else with the one for the tests."""
    if request.config.getoption("--provider") == "cuda":
        return lambda code: fresh_python(PRELUDE + code).splitlines()
    return on_fake


# --------------------------------------------------------------------------------------------- any driver --


def test_memory_is_filled_copied_and_given_back(on_driver):
    assert on_driver(
        """
gpu = Sim(LIBRARY)
stream, block = gpu.stream(), gpu.malloc(0, 4096)
free, total = gpu.memory_info(0)
gpu.fill(block, 7, 4096, stream)
other = gpu.malloc(0, 4096)
gpu.copy(other, 0, block, 0, 4096, stream)
print(block.value % 64, free < total, bytes_of(gpu, other, 4096, stream) == bytes([7]) * 4096)
gpu.free(0, block); gpu.free(0, other)
host = c_void_p(gpu._result(c_void_p, "host_malloc", ctypes.c_size_t(64)))
print(host.value % 64, told(gpu.call, "host_free", host))
"""
    ) == ["0 True True", "0 no error"]


def test_streams_and_events_answer_order_and_measure(on_driver):
    assert on_driver(
        """
gpu = Sim(LIBRARY)
least, greatest = gpu.priority_range()
a, b, default = gpu.stream(0, greatest), gpu.stream(), gpu.default_stream(0)
start, end = gpu.event(timing=True), gpu.event(timing=True)
block = gpu.malloc(0, 1 << 16)
gpu.call("event_record", start, a)
gpu.fill(block, 1, 1 << 16, a)
gpu.call("event_record", end, a)
gpu.call("stream_wait_event", b, end)
gpu.call("stream_wait_event", default, end)
gpu.synchronize(b); gpu.synchronize(default); gpu.call("device_synchronize", 0)
print(least, greatest < 0, gpu.done(a), gpu.done(default), gpu.event_done(end))
print(gpu.elapsed_ms(start, end) > 0, told(gpu.elapsed_ms, start, gpu.event(timing=True))[0])
print(gpu.event_done(gpu.event()))
for thing in (start, end): gpu.call("event_destroy", thing)
gpu.call("stream_destroy", a)
print(told(gpu.call, "stream_destroy", default))
"""
    ) == [
        "0 True True True True",
        "True 2",
        "True",
        "(2, 'stream_destroy: the default stream cannot be destroyed')",
    ]


def test_bad_calls_are_refused_with_what_was_asked(on_driver):
    out = on_driver(
        """
gpu = Sim(LIBRARY, start=False)
print(told(gpu.malloc, 0, 8))
gpu.call("init")
count = gpu.device_count()
print(told(gpu.malloc, count, 8)[1] == f"malloc: no device {count}: there are {count}")
print(told(gpu.malloc, 0, 0))
status, message = told(gpu.malloc, 0, 1 << 50)
print(status, message)
seen = []
thread = threading.Thread(target=lambda: seen.append(gpu.error())); thread.start(); thread.join()
print(seen, gpu.error() == message.partition(": ")[2])
"""
    )
    assert out == [
        "(2, 'malloc: the runtime has not been started: call init first')",
        "True",
        "(2, 'malloc: 0 bytes asked for')",
        "3 malloc: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory)",
        "[''] True",
    ]


def test_a_device_tells_its_name_memory_and_architecture(on_driver):
    name, *facts = on_driver(
        """
gpu = Sim(LIBRARY)
p = gpu.properties(0)
print(p.name.decode())
print(p.total_memory >= gpu.memory_info(0)[1], p.arch_major >= 7, p.arch_minor >= 0)
print(p.multiprocessor_count > 1)
"""
    )
    assert "GPU" in name or "NVIDIA" in name
    assert facts == ["True True True", "True"]


def test_a_call_leaves_the_threads_context_as_it_was(on_driver):
    assert on_driver(
        """
gpu = Sim(LIBRARY)
driver = ctypes.CDLL("libcuda.so.1")
def context():
    found = c_void_p(); driver.cuCtxGetCurrent(byref(found)); return found.value
print(context())
stream, block = gpu.stream(), gpu.malloc(0, 64)
gpu.fill(block, 1, 64, stream); gpu.synchronize(stream); told(gpu.malloc, 0, 1 << 50)
print(context())
mine = c_void_p(); driver.cuDevicePrimaryCtxRetain(byref(mine), 0); driver.cuCtxPushCurrent_v2(mine)
gpu.fill(block, 1, 64, gpu.default_stream()); gpu.fill(block, 1, 64, None)
print(context() == mine.value)
"""
    ) == ["None", "None", "True"]


# ------------------------------------------------------------------------------------------ the test's own --


def test_counting_devices_starts_no_driver_and_spoils_no_fork(on_fake, tmp_path):
    log = tmp_path / "log"
    out = on_fake(
        f"""
gpu = Sim(LIBRARY, start=False)
print(gpu.device_count(), Path({str(log)!r}).exists(), flush=True)
if os.fork() == 0:
    gpu.call("init"); print(gpu.device_count(), gpu.malloc(0, 8).value > 0, flush=True)
    os._exit(0)
os.wait()
gpu.call("init")
if os.fork() == 0:
    print(gpu.device_count(), told(gpu.call, "init"), flush=True)
    os._exit(0)
os.wait()
""",
        FAKE_GPUS="3",
        FAKE_LOG=str(log),
    )
    assert out == [
        "3 False",
        "3 True",
        '3 (4, "init: cuInit: the CUDA driver was started before this process was forked; '
        "use the 'spawn' start method\")",
    ]


@pytest.mark.parametrize(
    ("setting", "count"),
    [
        ("0", 1),
        ("3,1", 2),
        (" 2 , 0 ", 2),
        ("-1", 0),
        ("0,7,1", 1),
        ("1,-1,2", 1),
        ("0,1,0", 0),
        ("one", 0),
        ("0x1", 0),
        ("GPU-a0,GPU-b1-of-the-tests", 2),
        ("GPU-a", 0),
        ("GPU-c", 0),
        ("MIG-GPU-a0/1/2", 4),
    ],
)
def test_the_devices_are_those_of_cuda_visible_devices(on_fake, setting, count):
    """The rules are CUDA's (programming guide, "CUDA Environment Variables")."""
    code = "print(Sim(LIBRARY, start=False).device_count())"
    assert on_fake(code, FAKE_GPUS="4", CUDA_VISIBLE_DEVICES=setting) == [str(count)]


def test_a_machine_whose_driver_has_no_device_has_none(on_fake):
    out = on_fake(
        "gpu = Sim(LIBRARY, start=False); print(gpu.device_count(), told(gpu.call, 'init'))", FAKE_GPUS="0"
    )
    assert out == ["0 (2, 'init: cuInit: CUDA_ERROR_NO_DEVICE (something else)')"]


def test_two_devices_have_memory_and_streams_of_their_own(on_fake):
    assert on_fake(
        """
gpu = Sim(LIBRARY)
blocks = [gpu.malloc(i, 1 << 18) for i in range(2)]
print([gpu.memory_info(i)[0] >> 18 for i in range(2)], told(gpu.malloc, 1, 1 << 20)[0])
for stream in (gpu.stream(1), gpu.default_stream(1)):
    gpu.fill(blocks[0], 3, 64, gpu.default_stream(0))
    gpu.copy(blocks[1], 1, blocks[0], 0, 64, stream)
    print(bytes_of(gpu, blocks[1], 64, stream) == bytes([3]) * 64)
gpu.free(1, blocks[1])
print([gpu.memory_info(i)[0] >> 18 for i in range(2)])
print(gpu.default_stream(0).value != gpu.default_stream(1).value)
"""
    ) == ["[3, 3] 3", "True", "True", "[3, 4]", "True"]


# --------------------------------------------------------------------------------- without a GPU or CUDA --


def test_without_a_driver_there_is_no_device_and_the_start_says_why(fresh_python):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        out = fresh_python(
            PRELUDE + "gpu = Sim(LIBRARY, start=False); print(gpu.device_count(), told(gpu.call, 'init'))"
        )
        assert out.startswith("0 (4, 'init: the CUDA driver library libcuda.so.1 cannot be loaded")
        assert "install the NVIDIA driver" in out
    else:
        pytest.skip("this machine has an NVIDIA driver")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_torch_without_cuda_cannot_have_the_device_and_says_what_to_install(python, site):
    site.install_tefl_hook()
    environment = site.environment(TEFL_PROVIDER="cuda", TEFL_DEVICE_NAME="maca")
    out = python(
        """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import _tefl_autoload; _tefl_autoload.autoload()
print([str(w.message) for w in caught if "maca" in str(w.message)][0])
import torch
try: torch.maca.synchronize()
except RuntimeError as error: print(error)
""",
        **environment,
    )
    assert out.count("tefl_provider.alias is TEFL_ALIAS_CUDA, and this PyTorch is built without CUDA") == 2
    assert out.count("install a CUDA build of PyTorch") == 2


def test_the_provider_does_not_take_cudas_own_name(python):
    out = python(
        """
from tefl.privateuse1 import BackendError, PrivateUse1Backend, register_backend
try: register_backend(PrivateUse1Backend("cuda", "cuda"))
except BackendError as error: print(error)
"""
    )
    assert "the device name 'cuda' is taken by torch: it is a device type" in out
    assert "TEFL_DEVICE_NAME" in out


def test_the_status_shows_the_provider_and_what_is_in_its_way(python):
    out = python(
        "from tefl.privateuse1 import status; s = status(); print(s['provider'], s['alias'], s['abi'])",
        TEFL_PROVIDER="cuda",
        TEFL_DEVICE_NAME="maca",
    )
    assert out == "cuda cuda 1.1"
