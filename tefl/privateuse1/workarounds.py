"""What torch gives no public way to do. Each entry says what is missing and when it can go."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import FrameType

import torch
from torch.library import Library


class KernelRecorder:
    """Finds the `torch.library.Library` objects that a function registered kernels with, to undo them.

    Missing in torch: a Library can be undone as a whole, but a function that makes some cannot be asked for
    them. Goes when torch offers a scope for registrations (torch.library._scoped_library is for one Library
    that the caller makes himself).
    """

    def __init__(self) -> None:
        self._before = set(torch.library._impls)

    def undo(self, returned: Iterable[Library]) -> None:
        """Destroy `returned` and every other Library that registered a kernel since this object was made."""
        new = torch.library._impls - self._before
        found = [thing for thing in gc.get_objects() if type(thing) is Library and thing._op_impls & new]
        for library in {id(library): library for library in (*returned, *found)}.values():
            library._destroy()  # type: ignore[no-untyped-call]


def graph_was_recorded() -> bool:
    """Whether this thread has recorded an autograd graph, so that a backward may have run.

    torch's engine makes its queues, one for each device, at the process's first backward and never again
    (start_device_threads in torch/csrc/autograd/engine.cpp): a device claimed later has none, and its first
    backward ends in an internal assert. Missing in torch: a way to add a queue, or to ask. Goes with either.
    """
    return bool(torch._C._autograd._get_sequence_nr() > 0)


def settle_default_backend() -> None:
    """Let the process group that torch is making count our backend as its default one.

    Called while torch makes a group's backends. Where the user named none, torch notes gloo as the default
    (`_new_process_group_helper` in torch/distributed/distributed_c10d.py) and registers what the device has
    as custom: DistributedDataParallel then finds no backend of type gloo. Missing in torch: the type of the
    backend that it chose itself. Upstream: https://github.com/pytorch/pytorch/pull/189193, which is about the
    same on XPU. Goes when `init_process_group()` alone and DDP work with a plugin's backend.
    """
    helper = torch.distributed.distributed_c10d._new_process_group_helper.__code__
    frame: FrameType | None = sys._getframe(1)
    for _ in range(6):
        if frame is None or frame.f_code is helper:
            break
        frame = frame.f_back
    if frame is not None and frame.f_code is helper and frame.f_locals["backend"] == "undefined":
        frame.f_locals["pg"]._set_default_backend(torch.distributed.ProcessGroup.BackendType.CUSTOM)


def autocast_dtype_rule(name: str, declared: torch.dtype | None) -> list[torch.dtype]:
    """Give the `torch.autocast(name)` being made its default dtype; return the dtypes autocast may use.

    Called from the device module's `get_amp_supported_dtype`, which `torch.autocast.__init__` asks after it
    has read the thread's default dtype. Missing in torch: a default dtype of a PrivateUse1 device that holds
    in every thread (it is float16, kept per thread). Goes when there is one.
    """
    supported = [torch.bfloat16, torch.float16]
    frame = _autocast_frame()
    if frame is None or frame.f_locals["dtype"] is not None or not frame.f_locals["enabled"]:
        return supported
    if torch.is_autocast_enabled(name):  # a nested context inherits, as on every other device
        return supported
    if declared is None:
        raise RuntimeError(
            f"torch.autocast({name!r}) needs an explicit dtype: the provider declared no default. "
            f"Write torch.autocast({name!r}, dtype=torch.bfloat16), or torch.float16"
        )
    frame.f_locals["self"].fast_dtype = declared
    return supported


def _autocast_frame() -> FrameType | None:
    """Return the frame of the `torch.autocast.__init__` that led here, None if none did."""
    init = torch.amp.autocast_mode.autocast.__init__.__code__
    frame: FrameType | None = sys._getframe(1)
    for _ in range(4):
        if frame is None or frame.f_code is init:
            return frame
        frame = frame.f_back
    return None
