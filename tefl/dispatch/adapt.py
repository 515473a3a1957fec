"""How an implementation is called, and what becomes of results that are not what the op's schema promises."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch

from .._log import logger
from .schema import Schema
from .types import OpDecl, OpImpl
from .values import described, detached, on_meta, tensors
from .writes import Versions, undeclared_write, versions, written

__all__ = ["Adapted", "Trusted", "same_layout"]

# Expected forms are kept for this many distinct argument shapes, then forgotten.
_FORMS_KEPT = 256

Arguments = tuple[Any, ...]


class Trusted:
    """Calls an implementation that keeps to shapes, dtypes and strides by itself, as the built-in ones do.

    Only the number of its results is looked at, and that tensors are tensors.
    """

    def __init__(self, schema: Schema, impl: OpImpl) -> None:
        self.impl = impl
        self._schema = schema

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.mend(self.impl.fn(*args, **kwargs), args, kwargs)

    def promise(self, args: Arguments, kwargs: Mapping[str, Any]) -> None:
        """What the results must look like: nothing is asked."""
        return

    def mend(self, got: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
        """What was returned: None, a tensor, or a tuple. TypeError where it is something else."""
        return _in_one_key(_counted(self._schema, self.impl, got))


class Adapted:
    """Calls an implementation and repairs what differs from the fake function's shape, dtype or strides.

    Shapes may differ by dimensions of size one (``[..., 1]`` statistics); anything else is an error, another
    device than the arguments' too. A result that shares memory with an argument or with another result is
    copied: the schema says that none does, and compilers rely on it. So is an inference tensor outside of
    inference mode, which autograd could not save. The first repair is logged once. An argument that
    was written by PyTorch's own operations without leave of the schema is an error.
    """

    def __init__(self, decl: OpDecl, schema: Schema, impl: OpImpl) -> None:
        self.impl = impl
        self._decl = decl
        self._schema = schema
        self._forms: dict[Any, Arguments] = {}
        self._warn_once = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wanted = self.promise(args, kwargs)  # first: an argument may have another form afterwards
        before = versions(self._schema, args, kwargs)
        try:
            got = self.impl.fn(*args, **kwargs)
        except Exception as error:
            self._refuse_writes(before, versions(self._schema, args, kwargs), error)
            raise
        self._refuse_writes(before, versions(self._schema, args, kwargs))
        return self._mended(got, wanted, args, kwargs)

    def _refuse_writes(self, before: Versions, now: Versions, error: Exception | None = None) -> None:
        if (argument := written(before, now)) is not None:
            raise undeclared_write(self.impl.op_name, self.impl.impl_id, argument) from error

    def promise(self, args: Arguments, kwargs: Mapping[str, Any]) -> Arguments:
        """What the results must look like: those of the fake function on meta tensors of that form."""
        key = (_key(args), _key(tuple(kwargs.items())))
        wanted = self._forms.get(key)
        if wanted is None:
            if len(self._forms) >= _FORMS_KEPT:
                self._forms.clear()
            wanted = self._forms[key] = _results(self._decl.fake(*on_meta(args), **on_meta(kwargs)))
        return wanted

    def mend(self, got: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
        """The results in the promised form. TypeError or ValueError where they cannot be brought to it."""
        return self._mended(got, self.promise(args, kwargs), args, kwargs)

    def _mended(self, got: Any, wanted: Arguments, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
        results = _counted(self._schema, self.impl, got)
        taken = list(tensors((args, kwargs)))
        devices = {tensor.device for tensor in taken}
        repaired: list[Any] = []
        for index, (result, want) in enumerate(zip(results, wanted, strict=False)):
            repaired.append(self._repair(index, result, want, taken, devices))
            taken += tensors(repaired[-1:])
        return _in_one_key(tuple(repaired))

    def _repair(
        self, index: int, got: Any, want: Any, taken: list[torch.Tensor], devices: set[torch.device]
    ) -> Any:
        if not isinstance(want, torch.Tensor):
            return got
        if devices and got.device not in devices:
            wanted = " or ".join(sorted(map(str, devices)))
            raise ValueError(f"{_who(self.impl)} returned result {index} on {got.device}, wanted {wanted}")
        fixed = got
        if fixed.shape != want.shape:
            if _without_ones(fixed.shape) != _without_ones(want.shape):
                shapes = f"{tuple(got.shape)}, wanted {tuple(want.shape)}"
                raise ValueError(f"{_who(self.impl)} returned result {index} of shape {shapes}")
            fixed = fixed.reshape(want.shape)
        if got.dtype != want.dtype and not (got.is_floating_point() and want.is_floating_point()):
            dtypes = f"{got.dtype}, wanted {want.dtype}"  # whole numbers would have lost what was computed
            raise TypeError(f"{_who(self.impl)} returned result {index} as {dtypes}")
        fixed = fixed.to(want.dtype)
        if not same_layout(fixed, want):
            laid_out = torch.empty_strided(want.shape, want.stride(), dtype=want.dtype, device=got.device)
            fixed = laid_out.copy_(fixed)
        is_frozen = fixed.is_inference() and not torch.is_inference_mode_enabled()
        if is_frozen or any(torch._C._is_alias_of(fixed, other) for other in taken):  # type: ignore[attr-defined]
            fixed = fixed.clone()
        if fixed is not got and self._warn_once.acquire(blocking=False):
            self._warn(index, got, want)
        return fixed

    def _warn(self, index: int, got: torch.Tensor, want: torch.Tensor) -> None:
        logger().warning(
            "%s returned result %d as %s, brought to %s in its own memory as the op declares; said once",
            _who(self.impl), index, described(got), described(want),
        )  # fmt: skip


def _counted(schema: Schema, impl: OpImpl, got: Any) -> Arguments:
    """What was returned as a tuple, without an autograd graph of the implementation's. TypeError where the
    count is wrong, or a tensor is none."""
    wanted = schema.results
    if not wanted:
        return ()
    results = _results(got)
    if len(results) != len(wanted):
        raise TypeError(f"{_who(impl)} returned {len(results)} results, wanted {len(wanted)}")
    for index, (result, is_tensor) in enumerate(zip(results, wanted, strict=True)):
        if is_tensor and not isinstance(result, torch.Tensor):
            got_type = type(result).__name__
            raise TypeError(f"{_who(impl)} returned {got_type} as result {index}, wanted a tensor")
    return tuple(map(detached, results))


def _in_one_key(results: Arguments) -> Any:
    return results if len(results) > 1 else results[0] if results else None


def _who(impl: OpImpl) -> str:
    return f"Op {impl.op_name!r}: implementation {impl.impl_id!r}"


def _results(returned: Any) -> Arguments:
    if returned is None:
        return ()
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    return tuple(map(_key, value)) if isinstance(value, (tuple, list)) else value


def _without_ones(shape: torch.Size) -> list[int]:
    return [size for size in shape if size != 1]


def same_layout(tensor: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether elements lie where those of the other do, which has the same shape."""
    steps = zip(tensor.shape, tensor.stride(), want.stride(), strict=True)
    return tensor.numel() == 0 or all(size == 1 or a == b for size, a, b in steps)
