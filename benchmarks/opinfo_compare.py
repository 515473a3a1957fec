"""One sample on the device and its twin on the CPU: how they are made, compared and counted."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from opinfo_choices import as_chosen_on
from opinfo_deviations import deviation_of
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_map

SEED = 0


@dataclass
class OpResult:
    """The outcome of one operator's, module's or optimizer's samples: each passes whole or has failed."""

    op: str
    passed: int = 0
    deviating: int = 0  # failed as opinfo_deviations.py says
    failed: int = 0
    skipped: int = 0  # the CPU cannot run them either
    errors: list[str] = field(default_factory=list)


class Database(Protocol):
    """What can be run: operators, modules or optimizers, each by name."""

    def names(self, dtype: torch.dtype) -> list[str]:
        """Return what has samples of `dtype`."""

    def check(self, name: str, device: str, dtype: torch.dtype, fraction: float) -> OpResult:
        """Run the samples, or a repeatable fraction of them, and compare each with the CPU."""


# ------------------------------------------------------------------------------------------- twins --


def to_cpu(value: Any, device: str) -> Any:
    """Return the CPU's twin of a sample's argument: a leaf over a copy of the same storage."""
    return as_chosen_on(device, moved(value, device, "cpu"))


def moved(value: Any, source: str, target: str) -> Any:
    """Return the twin on `target` of a sample's argument on `source`; what is elsewhere stays as it is."""
    if isinstance(value, PackedSequence):
        return PackedSequence(*(moved(part, source, target) for part in value))
    if isinstance(value, torch.Tensor) and value.device.type == source and value.layout == torch.strided:
        storage = value.untyped_storage()
        copied = torch.UntypedStorage(storage.nbytes(), device=target).copy_(storage)
        twin = torch.empty(0, dtype=value.dtype, device=target)
        twin.set_(copied, value.storage_offset(), value.shape, value.stride())
        twin = twin.conj() if value.is_conj() else twin
        twin = torch._neg_view(twin) if value.is_neg() else twin
        return twin.requires_grad_(value.requires_grad)
    if isinstance(value, torch.Tensor) and (value.device.type == source or target == "cpu"):
        return value.detach().to(target).requires_grad_(value.requires_grad)
    if isinstance(value, str | torch.device) and str(value).partition(":")[0] == source:
        return target  # factories are told where to put their result
    return value


def as_leaf(value: Any) -> Any:
    """Return a tensor argument as a leaf of a new graph, others as they are."""
    if isinstance(value, PackedSequence):
        return PackedSequence(as_leaf(value.data), *value[1:])
    if isinstance(value, torch.Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    return value


def leaves_of(value: Any) -> list[Any]:
    """Return what a nested value is made of, in order."""
    leaves = tree_flatten(value)[0]
    return [part for leaf in leaves for part in (leaf if isinstance(leaf, PackedSequence) else [leaf])]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested value, in order."""
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor)]


def twins_of(arguments: Any, device: str) -> tuple[Any, Any]:
    """Return a sample's arguments as leaves on the device, and the same on the CPU."""
    on_device = tree_map(as_leaf, arguments)
    return on_device, tree_map(lambda value: to_cpu(value, device), on_device)


def gradients(result: Any, inputs: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradients of `result`, weighted by seeded numbers, for each input that wants one."""
    outputs = [t for t in tensors_in(result) if t.requires_grad]
    wanted = [t for t in inputs if t.requires_grad]
    if not outputs or not wanted:
        return []
    generator = torch.Generator().manual_seed(SEED)
    cotangents = [torch.randn(t.shape, dtype=t.dtype, generator=generator).to(t.device) for t in outputs]
    return list(torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True))


# -------------------------------------------------------------------------------- comparing, counting --


def compare(got: Any, wanted: Any, device: str, uninitialised: bool = False) -> None:
    """Raise unless `got` lies on `device` and equals the CPU's `wanted`, values that are whatever apart."""
    for got_leaf, wanted_leaf in zip(leaves_of(got), leaves_of(wanted), strict=True):
        if not isinstance(wanted_leaf, torch.Tensor):
            torch.testing.assert_close(got_leaf, wanted_leaf, equal_nan=True)
            continue
        if got_leaf.device.type != device:
            raise AssertionError(f"a result is on {got_leaf.device}")
        if uninitialised:
            got_leaf, wanted_leaf = torch.zeros_like(got_leaf), torch.zeros_like(wanted_leaf)
        torch.testing.assert_close(got_leaf.cpu(), wanted_leaf, equal_nan=True)


def message(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def some_of(samples: list[Any], fraction: float, name: str) -> list[Any]:
    """Return a fraction of the samples of `name`, one at least, drawn at random and always the same."""
    if fraction >= 1 or not samples:
        return samples
    return random.Random(name).sample(samples, max(1, round(len(samples) * fraction)))


def count(result: OpResult, error: str | None, dtype: torch.dtype) -> None:
    """Count a sample by what `error` says: None, "skipped", a listed deviation, or a failure."""
    if error is None:
        result.passed += 1
    elif error == "skipped":
        result.skipped += 1
    elif deviation_of(result.op, str(dtype).removeprefix("torch."), error) is not None:
        result.deviating += 1
    else:
        result.failed += 1
        result.errors.append(error)
