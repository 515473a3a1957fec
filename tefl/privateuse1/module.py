"""The device module ``torch.<name>``: what `torch.cuda` is to CUDA devices.

Its functions live here and in `streams.py`, `random.py`, `memory.py` and `amp.py`; `build` gathers them under
the claimed name. What it has not got, `absent.py` lists.
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
from tefl.privateuse1 import amp, memory, random, streams
from tefl.privateuse1.absent import GRAPHS, absent
from tefl.privateuse1.checks import BackendError
from tefl.privateuse1.indexing import Device, current_index, device_index, optional_index
from tefl.privateuse1.workarounds import autocast_dtype_rule

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "init",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_tf32_supported",
    "set_device",
    "synchronize",
]

#: The modules whose functions the device module has, under its own name and under theirs.
PARTS = (streams, random, memory)


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


def synchronize(device: Device | None = None, timeout: float | None = None) -> None:
    """Wait until all work on `device`, the current one unless given, is done.

    After `timeout` seconds, those of TEFL_SYNC_TIMEOUT unless given, torch.AcceleratorError names the stream
    that is not done, what it is at, and what was enqueued there. Without either the wait has no end.
    """
    if timeout is not None and not isinstance(timeout, (int, float)):
        raise TypeError(f"synchronize: timeout is {timeout!r}, want a number of seconds above 0, or None")
    if timeout is not None and not 0 < timeout < float("inf"):
        raise ValueError(f"synchronize: timeout is {timeout!r}, want a number of seconds above 0, or None")
    _native.load().synchronize(device_index(device), timeout or 0.0)


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


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return whether the device computes in bfloat16. Every operator does, on the alias device if need be."""
    return torch.cuda.is_bf16_supported(including_emulation) if _native.load().shares_gpu() else True


def is_tf32_supported() -> bool:
    """Return whether matrix products may use TensorFloat-32."""
    return bool(_native.load().shares_gpu()) and torch.cuda.is_tf32_supported()


def get_arch_list() -> list[str]:
    """Return the architectures that PyTorch holds compiled kernels for: none, they are the alias device's."""
    return []


def get_gencode_flags() -> str:
    """Return the compiler's flags for the architectures that PyTorch was built for: none."""
    return ""


def ipc_collect() -> None:
    """Do nothing: memory is not shared with other processes, so none has to be collected."""


def _computed_attribute(name: str) -> bool:
    """What torch reads as an attribute: activation checkpointing keeps random states only if it is there."""
    if name == "_initialized":
        return is_initialized()
    why = absent(_native.load().shares_gpu()).get(name)
    told = f"module 'torch.{_name()}' has no attribute {name!r}"
    raise AttributeError(f"{told}: {why}" if why else told)


def build(name: str, autocast_dtype: torch.dtype | None) -> ModuleType:
    """Make the module for the claimed device `name`."""

    def get_amp_supported_dtype() -> list[torch.dtype]:
        """Return the dtypes that autocast may use; the default one is the provider's choice."""
        return autocast_dtype_rule(name, autocast_dtype)

    contents: dict[str, Any] = {
        **_exports(sys.modules[__name__]),
        **{key: value for part in PARTS for key, value in _exports(part).items()},
        **{part.__name__.rpartition(".")[2]: part for part in PARTS},
        "amp": amp.build(name),
        "OutOfMemoryError": torch.OutOfMemoryError,
        "AcceleratorError": torch.AcceleratorError,
        "get_amp_supported_dtype": get_amp_supported_dtype,
        "_is_in_bad_fork": _is_in_bad_fork,
        "_lazy_init": init,
        "_snapshot": memory._snapshot,
        "_dump_snapshot": memory._dump_snapshot,
        "__getattr__": _computed_attribute,
    }
    if _native.load().shares_gpu():
        contents |= {
            shared: getattr(torch.cuda, shared) for shared in (*GRAPHS, "is_current_stream_capturing")
        }
    return _module(name, f"The device {name!r}, with the functions that torch.cuda has for CUDA.", contents)


def build_broken(name: str, error: BackendError) -> ModuleType:
    """Make the module of a device whose provider failed its checks: using it raises `error`.

    What torch asks of every device in passing (torch.manual_seed, is_available) answers that there is none.
    """

    def raise_defects(*_args: object, **_kwargs: object) -> NoReturn:
        raise BackendError(error.subject, error.defects)

    names = [
        *__all__,
        *(name for part in PARTS for name in part.__all__),
        "get_amp_supported_dtype",
        "_lazy_init",
    ]
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
    """Make `module` torch.<name>, importable under that name, and its submodules under theirs.

    Some versions of torch import ``torch_<name>`` to start a device; where the vendor's package does not
    bear that name, ours answers to it.
    """
    torch._register_device_module(name, module)  # type: ignore[no-untyped-call]
    sys.modules.setdefault(f"torch_{name}", module)
    for key, part in vars(module).items():
        if isinstance(part, ModuleType):
            sys.modules[f"torch.{name}.{key}"] = part
