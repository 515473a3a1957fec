"""Drives the sim provider through its C table alone, as tefl's native part does, without PyTorch.

The order of the functions is read from the public header, so this file cannot drift from it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char, c_double, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HEADER = ROOT / "csrc" / "include" / "tefl_provider.h"
LIBRARY = ROOT / "tefl" / "lib" / "tefl_sim.so"

OK, NOT_READY, INVALID, OUT_OF_MEMORY, UNSUPPORTED, DEVICE, INTERNAL = range(7)
HOST = -1


class Provider(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("abi_major", c_uint32),
        ("abi_minor", c_uint32),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("alias", c_int32),
        ("last_error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("runtime", c_void_p),
        ("launch", c_void_p),
    )


class Properties(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("name", c_char * 128),
        ("total_memory", c_uint64),
        ("arch_major", c_int32),
        ("arch_minor", c_int32),
        ("multiprocessor_count", c_int32),
    )


class SimError(RuntimeError):
    def __init__(self, function: str, status: int, message: str) -> None:
        super().__init__(f"{function}: {message}")
        self.status = status


class Table:
    """A struct of function pointers; `table.malloc(...)` returns the status."""

    def __init__(self, struct: str, address: int) -> None:
        body = re.search(rf"typedef struct {struct} \{{(.*?)\n\}} {struct};", HEADER.read_text(), re.S)
        assert body is not None
        names = re.findall(r"\(\*(\w+)\)\(", body.group(1))
        pointers = (c_void_p * (len(names) + 1)).from_address(address)
        for name, pointer in zip(names, pointers[1:], strict=True):
            setattr(self, name, ctypes.CFUNCTYPE(c_int32)(pointer) if pointer else None)


class Sim:
    """The provider with Python's manners: errors raise SimError, results are returned."""

    def __init__(self, path: Path = LIBRARY, *, start: bool = True) -> None:
        library = ctypes.CDLL(str(path))
        library.tefl_provider_get.restype = ctypes.POINTER(Provider)
        self.provider = library.tefl_provider_get().contents
        self.runtime = Table("tefl_runtime", self.provider.runtime)
        self.launcher = Table("tefl_launch", self.provider.launch) if self.provider.launch else None
        if start:
            self.call("init")

    def error(self) -> str:
        return self.provider.last_error().decode()

    def call(self, name: str, *arguments: object) -> None:
        table = self.runtime if hasattr(self.runtime, name) else self.launcher
        status = getattr(table, name)(*arguments)
        if status != OK:
            raise SimError(name, status, self.error())

    def _result(self, kind: type, name: str, *arguments: object):
        value = kind()
        self.call(name, *arguments, byref(value))
        return value.value

    def device_count(self) -> int:
        return self._result(c_int32, "device_count")

    def properties(self, device: int) -> Properties:
        properties = Properties(size=ctypes.sizeof(Properties))
        self.call("device_properties", device, byref(properties))
        return properties

    def malloc(self, device: int, size: int) -> c_void_p:
        return c_void_p(self._result(c_void_p, "malloc", device, c_size_t(size)))

    def free(self, device: int, pointer: c_void_p) -> None:
        self.call("free", device, pointer)

    def memory_info(self, device: int) -> tuple[int, int]:
        free, total = c_uint64(), c_uint64()
        self.call("memory_info", device, byref(free), byref(total))
        return free.value, total.value

    def stream(self, device: int = 0, priority: int = 0) -> c_void_p:
        return c_void_p(self._result(c_void_p, "stream_create", device, priority))

    def default_stream(self, device: int = 0) -> c_void_p:
        return c_void_p(self._result(c_void_p, "stream_default", device))

    def priority_range(self, device: int = 0) -> tuple[int, int]:
        least, greatest = c_int32(), c_int32()
        self.call("stream_priority_range", device, byref(least), byref(greatest))
        return least.value, greatest.value

    def event(self, device: int = 0, timing: bool = False) -> c_void_p:
        return c_void_p(self._result(c_void_p, "event_create", device, int(timing)))

    def elapsed_ms(self, start: c_void_p, end: c_void_p) -> float:
        return self._result(c_double, "event_elapsed_ms", start, end)

    def copy(self, to, to_device: int, source, from_device: int, size: int, stream: c_void_p) -> None:
        self.call("memcpy_async", to, to_device, source, from_device, c_size_t(size), stream)

    def fill(self, pointer: c_void_p, value: int, size: int, stream: c_void_p) -> None:
        self.call("memset_async", pointer, ctypes.c_uint8(value), c_size_t(size), stream)

    def load(self, device: int, image: bytes) -> c_void_p:
        return c_void_p(self._result(c_void_p, "module_load", device, image, c_size_t(len(image))))

    def function(self, module: c_void_p, name: str) -> c_void_p:
        return c_void_p(self._result(c_void_p, "module_function", module, name.encode()))

    def launch(
        self,
        function: c_void_p,
        stream: c_void_p,
        *values: ctypes._SimpleCData,
        grid: tuple[int, int, int] = (1, 1, 1),
        shared: int = 0,
    ) -> None:
        triple = c_uint32 * 3
        pointers = (c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        self.call("launch", function, triple(*grid), triple(1, 1, 1), shared, stream, pointers, len(values))

    def synchronize(self, stream: c_void_p) -> None:
        self.call("stream_synchronize", stream)

    def done(self, stream: c_void_p) -> bool:
        return self._ready("stream_query", stream)

    def event_done(self, event: c_void_p) -> bool:
        return self._ready("event_query", event)

    def _ready(self, name: str, handle: c_void_p) -> bool:
        status = getattr(self.runtime, name)(handle)
        if status not in (OK, NOT_READY):
            raise SimError(name, status, self.error())
        return status == OK


class Kernels:
    """The kernels of sim_kernels.c on one device: ``kernels("store", stream, pointer(x), c_int32(1))``."""

    def __init__(self, sim: Sim, image: bytes, device: int) -> None:
        self.sim, self.module = sim, sim.load(device, image)

    def __call__(self, name: str, stream: c_void_p, *values, **shape) -> None:
        self.sim.launch(self.sim.function(self.module, name), stream, *values, **shape)

    def close(self, stream: c_void_p) -> c_int32:
        """Hold `stream` until the flag that is returned becomes 1."""
        flag = c_int32(0)
        self("gate", stream, pointer(flag))
        return flag


def pointer(thing) -> c_void_p:
    """Return the address of a ctypes object."""
    return c_void_p(ctypes.addressof(thing))


@contextmanager
def fails(status: int, match: str) -> Iterator[None]:
    """Expect a SimError of that status whose message matches."""
    with pytest.raises(SimError, match=match) as raised:
        yield
    assert raised.value.status == status
