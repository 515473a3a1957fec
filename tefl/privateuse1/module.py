"""The device module ``torch.<name>``: what `torch.cuda` is to CUDA devices.

Its functions live here and in `random.py` and `memory.py`; `build` gathers them under the claimed name.
Importing it, asking how many devices there are, or seeding starts no runtime.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from tefl import _native
from tefl.privateuse1 import memory, random
from tefl.privateuse1.checks import BackendError
from tefl.privateuse1.indexing import Device, current_index, device_index, optional_index
from tefl.privateuse1.workarounds import autocast_dtype_rule

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "is_available",
    "is_initialized",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
]

Stream = torch.Stream
Event = torch.Event

#: What a device that shares a GPU with PyTorch's CUDA has besides: it captures work under either name.
_OF_CUDA = (
    "CUDAGraph",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "make_graphed_callables",
)


def device_count() -> int:
    """Return how many devices this process sees. Starts no runtime."""
    return int(_native.load().device_count())


def is_available() -> bool:
    """Return whether there is a device. Starts no runtime."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return whether the runtime has started in this process."""
    return bool(_native.load().is_initialized())


def init() -> None:
    """Start the runtime, which otherwise starts on first use."""
    native = _native.load()
    native.init()  # first, so that a refusal names this device
    if native.shares_gpu():
        # What waits there for its start, seeds above all, is of this device too.
        torch.cuda.init()  # type: ignore[no-untyped-call]


def _is_in_bad_fork() -> bool:
    """Return whether this process was forked after the runtime had started: it cannot use the device."""
    return bool(_native.load().in_bad_fork())


def current_device() -> int:
    """Return the calling thread's current device.

    It is CUDA's where the two share a GPU, and then asking it starts the runtime, as for CUDA.
    """
    return current_index()


def set_device(device: Device) -> None:
    """Make `device` (an index, "maca:1" or a torch.device) the calling thread's current one."""
    if (index := optional_index(device)) is not None:
        _native.load().set_device(index)


class device(contextlib.ContextDecorator):
    """A context in which `device` is the calling thread's current one; None or -1 changes nothing.

    It may be entered again while it is open, and decorate functions that call themselves.
    """

    def __init__(self, device: Device | None) -> None:
        self.idx = -1 if device is None else optional_index(device)
        self._previous: list[int] = []

    def _recreate_cm(self) -> Self:
        fresh = copy.copy(self)  # one for each call of a decorated function, which other threads may make
        fresh._previous = []
        return fresh

    def __enter__(self) -> None:
        if self.idx is not None and self.idx >= 0:
            self._previous.append(_native.load().exchange_device(self.idx))

    def __exit__(self, *exc_info: object) -> None:
        if self._previous:
            _native.load().exchange_device(self._previous.pop())


class device_of(device):
    """A context in which the device of the tensor `obj` is the current one; other tensors change nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.get_device() if obj.device.type == _name() else None)


def _name() -> str:
    return torch._C._get_privateuse1_backend_name()


def synchronize(device: Device | None = None) -> None:
    """Wait until all work on `device`, the current one unless given, is done."""
    _native.load().synchronize(device_index(device))


class DeviceProperties(NamedTuple):
    """What a device says about itself, under the names that torch.cuda uses."""

    name: str
    total_memory: int  # bytes
    major: int  # of the architecture number; 0, 0 if the device has none
    minor: int
    multi_processor_count: int


def get_device_properties(device: Device | None = None) -> DeviceProperties:
    """Return what a device says about itself."""
    facts = _native.load().device_properties(device_index(device))
    return DeviceProperties(
        name=facts["name"],
        total_memory=facts["total_memory"],
        major=facts["arch_major"],
        minor=facts["arch_minor"],
        multi_processor_count=facts["multiprocessor_count"],
    )


def get_device_name(device: Device | None = None) -> str:
    """Return the vendor's name of a device."""
    return get_device_properties(device).name


def get_device_capability(device: Device | None = None) -> tuple[int, int]:
    """Return the architecture number of a device; (0, 0) if it has none."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def current_stream(device: Device | None = None) -> torch.Stream:
    """Return the calling thread's current stream of a device."""
    return torch.accelerator.current_stream(device_index(device))


def default_stream(device: Device | None = None) -> torch.Stream:
    """Return the stream that is current where nobody chose one."""
    kind = torch._C._autograd.DeviceType.PrivateUse1.value
    return torch.Stream(stream_id=0, device_index=device_index(device), device_type=kind)


def set_stream(stream: torch.Stream | None) -> None:
    """Make `stream` the calling thread's current one for its device; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which `stream` is current; None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


def _computed_attribute(name: str) -> bool:
    """What torch reads as an attribute: activation checkpointing keeps random states only if it is there."""
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.{_name()}' has no attribute {name!r}")


def build(name: str, autocast_dtype: torch.dtype | None) -> ModuleType:
    """Make the module for the claimed device `name`."""

    def get_amp_supported_dtype() -> list[torch.dtype]:
        """Return the dtypes that autocast may use; the default one is the provider's choice."""
        return autocast_dtype_rule(name, autocast_dtype)

    contents: dict[str, Any] = {
        **_exports(sys.modules[__name__]),
        **_exports(random),
        **_exports(memory),
        "get_amp_supported_dtype": get_amp_supported_dtype,
        "_is_in_bad_fork": _is_in_bad_fork,
        "_lazy_init": init,
        "__getattr__": _computed_attribute,
    }
    if _native.load().shares_gpu():
        contents |= {shared: getattr(torch.cuda, shared) for shared in _OF_CUDA}
    return _module(name, f"The device {name!r}, with the functions that torch.cuda has for CUDA.", contents)


def build_broken(name: str, error: BackendError) -> ModuleType:
    """Make the module of a device whose provider failed its checks: using it raises `error`.

    What torch asks of every device in passing (torch.manual_seed, is_available) answers that there is none.
    """

    def raise_defects(*_args: object, **_kwargs: object) -> NoReturn:
        raise BackendError(error.subject, error.defects)

    names = [*__all__, *random.__all__, *memory.__all__, "get_amp_supported_dtype", "_lazy_init"]
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: False,
        "is_initialized": lambda: False,
        "device_count": lambda: 0,
        "manual_seed_all": lambda seed: None,
        "_is_in_bad_fork": lambda: False,
    }
    contents = {**dict.fromkeys(names, raise_defects), **answers}
    return _module(name, str(error), contents)


def _exports(source: ModuleType) -> dict[str, Any]:
    return {name: getattr(source, name) for name in source.__all__}


def _module(name: str, doc: str, contents: dict[str, Any]) -> ModuleType:
    module = ModuleType(f"torch.{name}", doc)
    module.__dict__.update(contents)
    module.__dict__["__all__"] = [key for key in contents if not key.startswith("_")]
    return module


def publish(name: str, module: ModuleType) -> None:
    """Make `module` torch.<name>, importable under that name.

    Some versions of torch import ``torch_<name>`` to start a device; where the vendor's package does not
    bear that name, ours answers to it.
    """
    torch._register_device_module(name, module)  # type: ignore[no-untyped-call]
    sys.modules.setdefault(f"torch_{name}", module)
