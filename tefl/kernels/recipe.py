"""What a call of an implementation allocates, launches and returns, as data.

An implementation under `by_recipe` writes down the work of a call and does none of it. In Python the recipe
is then run; and the router, where the compiled part is there, is handed the same recipe once for all calls
that look alike (dtypes, device, sizes, strides, alignment, numbers), which native code runs from then on:
only the addresses differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec

import torch
from torch import Tensor

from tefl import _native
from tefl.kernels._buffer import Buffer, dense
from tefl.kernels.launcher import BinaryKernel, Grid, TritonKernel

__all__ = ["Buffer", "ByRecipe", "Launch", "Recipe", "by_recipe", "dense", "launch"]

P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel and what it is called with; a `Buffer` stands for the tensor that will be in its place."""

    kernel: BinaryKernel | TritonKernel
    grid: Grid
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    def run(self, tensor_of: Callable[[Any], Any]) -> None:
        """Enqueue it; ``tensor_of`` gives the tensor for a buffer, and anything else as it is."""
        self.kernel(self.grid, *map(tensor_of, self.args), **self.options)


def launch(kernel: BinaryKernel | TritonKernel, grid: Grid, *args: Any, **options: Any) -> Launch:
    """The launch that ``kernel(grid, *args, **options)`` would make, once buffers are tensors."""
    return Launch(kernel, grid, args, options)


@dataclass(frozen=True, eq=False)
class Recipe:
    """The work of one call on ``device``: launches in order, and the buffers that are its results."""

    device: torch.device
    launches: Sequence[Launch]
    results: Sequence[Buffer]

    def run(self) -> tuple[Tensor, ...]:
        """Do it now, and return the results."""
        tensors = {buffer: buffer.make(self.device) for buffer in self.results}

        def tensor_of(arg: Any) -> Any:
            if not isinstance(arg, Buffer):
                return arg
            if arg not in tensors:
                tensors[arg] = arg.make(self.device)
            return tensors[arg]

        for each in self.launches:
            each.run(tensor_of)
        return tuple(tensors[buffer] for buffer in self.results)

    def compile(self, arguments: Sequence[Any]) -> Any:
        """The native kernel, in a capsule, for calls with such arguments; None where there can be none.

        ``arguments`` are all of a call's, in order, each tensor another object. There is none where one of
        the kernels can only be launched from Python, where one reads or a buffer copies a tensor that is no
        argument, and where one buffer is two results, which would share memory.
        """
        if len(set(self.results)) < len(self.results):
            return None
        numbers = {id(arg): ("input", i) for i, arg in enumerate(arguments) if isinstance(arg, Tensor)}
        buffers: dict[Buffer, int] = {}

        def number(buffer: Buffer) -> int:
            return buffers.setdefault(buffer, len(buffers))

        def operand(arg: Any) -> Any:
            if isinstance(arg, Buffer):
                return "buffer", number(arg)
            return numbers[id(arg)] if isinstance(arg, Tensor) else arg

        results, steps = [number(buffer) for buffer in self.results], []
        for each in self.launches:
            ready = each.kernel.ready(self.device, *each.args, **each.options)
            if ready is None or any(isinstance(arg, Tensor) and id(arg) not in numbers for arg in ready.args):
                return None
            operands = tuple(map(operand, ready.args))
            steps.append((ready.kernel, each.grid, ready.block, ready.shared_bytes, operands))
        if any(buffer.source is not None and id(buffer.source) not in numbers for buffer in buffers):
            return None
        made = [
            (b.shape, b.dtype, None if b.source is None else numbers[id(b.source)][1], b.zero)
            for b in buffers
        ]
        return _native.load().recipe_kernel(str(self.device), len(arguments), made, steps, results)

    def keeps(self, promise: Sequence[Any]) -> bool:
        """Whether the results have the shapes and dtypes of these tensors, which are contiguous."""
        return len(self.results) == len(promise) and all(
            buffer.shape == tuple(want.shape) and buffer.dtype is want.dtype and want.is_contiguous()
            for buffer, want in zip(self.results, promise, strict=True)
        )


class ByRecipe(Generic[P]):
    """A function that writes a `Recipe`, called as one that does the work."""

    def __init__(self, write: Callable[P, Recipe]) -> None:
        functools.update_wrapper(self, write)
        self.write = write

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Tensor, ...]:
        """Do the work of the call."""
        return self.write(*args, **kwargs).run()

    def native_kernel(
        self, promise: Sequence[Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What serves calls that look like this one, in native code: all arguments, in the schema's order.

        None where Python must serve them: a kernel that only Triton can launch or interpret, or results that
        do not have the forms of ``promise``, which is None where they need not be looked at.
        """
        # Each argument as an object of its own: that two of them are one tensor holds for this call only.
        args = [_alias(arg) for arg in args]
        kwargs = {name: _alias(arg) for name, arg in kwargs.items()}
        recipe = self.write(*args, **kwargs)
        if promise is not None and not recipe.keeps(promise):
            return None
        return recipe.compile([*args, *kwargs.values()])


def by_recipe(write: Callable[P, Recipe]) -> ByRecipe[P]:
    """Make an implementation of a function that writes its recipe.

    The function must neither launch nor copy, and what it decides must follow from what looks alike in alike
    calls: never from the values in tensors, nor from an address but for whether 16 divides it.
    """
    return ByRecipe(write)


def _alias(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
