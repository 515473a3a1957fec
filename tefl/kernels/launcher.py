"""The one launcher of compiled kernels: entry points of binaries, and Triton functions.

Both go through ``tefl._C``, which loads machine code on a tensor's device and enqueues it on that device's
current stream, through the CUDA driver or through the claimed provider's launch table. Nothing is compiled,
loaded or imported before the first launch.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tefl import _native
from tefl._errors import dtype_name
from tefl.kernels._buffer import Buffer

__all__ = [
    "BinaryKernel",
    "Grid",
    "Ready",
    "Specialisation",
    "TritonKernel",
    "compile_triton",
    "scratch_pointers",
    "specialise",
]

Grid = tuple[int, ...]
"""Blocks in x, y, z; trailing ones may be left out. A grid with a 0 launches nothing."""

Specialisation = tuple[str, Any]
"""What compiled code may rely on of one argument: its Triton type and whether 16 divides its value (for a
tensor its address), or ``("constexpr", value)`` for a value that is compiled in."""

_POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
_LETTERS = {"i32": "i", "i64": "l", "fp32": "f"}

# Triton's interpreter replaces names of triton.language for as long as it runs a kernel, for all threads.
_INTERPRETER = threading.Lock()


@dataclass(frozen=True)
class Ready:
    """A launch down to the native kernel and the values of its parameters."""

    kernel: Any
    block: Grid
    shared_bytes: int
    args: tuple[Any, ...]


class BinaryKernel:
    """One entry point of a file of machine code, such as a fatbin.

    ``signature`` has a letter for each parameter: p pointer (a tensor or None), i int32, l int64, f float32,
    d float64. Calling it enqueues a launch; errors of the device's runtime are a RuntimeError that names the
    kernel, the device and the shape of the launch.
    """

    def __init__(self, image: Path, name: str, signature: str) -> None:
        self.image = image
        self.name = name
        self.signature = signature

    @cached_property
    def _native(self) -> Any:
        return _native.load().Kernel(_binary(self.image), self.name, self.signature)

    def __call__(self, grid: Grid, block: Grid, *args: Tensor | float | None, shared_bytes: int = 0) -> None:
        """Launch ``grid`` blocks of ``block`` threads with ``shared_bytes`` of dynamic shared memory."""
        self._native.launch(grid, block, shared_bytes, *args)

    def ready(self, device: torch.device, block: Grid, *args: Any, shared_bytes: int = 0) -> Ready:
        """What such a launch on ``device`` comes down to; a `Buffer` may stand for a tensor."""
        return Ready(self._native, block, shared_bytes, args)


@cache
def _binary(image: Path) -> Any:
    """The file's machine code, shared by all its kernels. Two threads at once may load it twice: harmless."""
    return _native.load().Binary(image.read_bytes())


def specialise(value: object, by_value: bool = True) -> Specialisation:
    """What Triton's own rules let compiled code rely on: type, divisibility by 16, the values None and 1.

    Without ``by_value``, for a parameter under ``do_not_specialize``, of an int or a tensor only the type.
    """
    if isinstance(value, Tensor):
        return _pointer(value.dtype), by_value and value.data_ptr() % 16 == 0
    if isinstance(value, Buffer):
        return _pointer(value.dtype), by_value
    if value is None:
        return "constexpr", None
    if isinstance(value, bool):
        raise TypeError(f"a bool argument of a Triton kernel must be a constexpr, got {value!r}")
    if isinstance(value, int):
        if value == 1 and by_value:
            return "constexpr", 1
        return ("i32" if -(2**31) <= value < 2**31 else "i64"), by_value and value % 16 == 0
    if isinstance(value, float):
        return "fp32", False
    raise TypeError(f"a Triton kernel takes tensors, ints, floats and None, got {type(value).__name__}")


def _pointer(dtype: torch.dtype) -> str:
    if (letters := _POINTERS.get(dtype)) is None:
        known = ", ".join(map(dtype_name, _POINTERS))
        raise TypeError(f"a Triton kernel takes tensors of {known}, got {dtype_name(dtype)}")
    return letters


def compile_triton(
    function: Any,
    arguments: Sequence[Specialisation],
    constexprs: Mapping[str, Any],
    arch: int,
    num_warps: int,
) -> Any:
    """Triton's compiled kernel of ``function`` for compute capability ``arch`` (90 for 9.0). Needs no GPU.

    ``arguments`` are of the parameters that are no ``tl.constexpr``, in order; ``constexprs`` are the others.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    free = [name for name in function.arg_names if name not in constexprs]
    types = dict(zip(free, arguments, strict=True))
    values = dict(constexprs) | {name: value for name, (kind, value) in types.items() if kind == "constexpr"}
    positions = {name: (position,) for position, name in enumerate(function.arg_names)}
    source = triton.compiler.ASTSource(
        fn=function,
        signature={name: types.get(name, ("constexpr", None))[0] for name in function.arg_names},
        constexprs={positions[name]: value for name, value in values.items()},
        attrs={
            positions[name]: [["tt.divisibility", 16]]
            for name, (kind, divisible) in types.items()
            if kind != "constexpr" and divisible
        },
    )
    # Triton's own default for fused multiply-add changed between versions; ours is on.
    options = {"num_warps": num_warps, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def scratch_pointers(ptx: str, name: str, parameters: int) -> int | None:
    """How many pointers to scratch memory Triton added after a kernel's own ``parameters``; None if unclear.

    Versions differ, so what is counted is the parameters that the entry has in its PTX.
    """
    _, found, rest = ptx.partition(f".entry {name}(")
    if not found:
        return None
    extra = rest.partition(")")[0].count(".param ") - parameters
    return extra if 0 <= extra <= 2 else None


@dataclass(frozen=True)
class _Launchable:
    """A compiled Triton kernel that the native launcher can run."""

    kernel: Any
    threads: int
    shared_bytes: int
    runtime: tuple[int, ...]
    """Positions of the arguments that are parameters; the others are compiled in."""

    def __call__(self, grid: Grid, args: Sequence[Any]) -> None:
        self.kernel.launch(grid, (self.threads,), self.shared_bytes, *[args[i] for i in self.runtime])

    def ready(self, args: Sequence[Any]) -> Ready:
        return Ready(self.kernel, (self.threads,), self.shared_bytes, tuple(args[i] for i in self.runtime))


def _launchable(compiled: Any, arguments: Sequence[Specialisation]) -> _Launchable | None:
    """None where the kernel wants something at launch that only Triton's own launcher knows how to give."""
    metadata = compiled.metadata
    runtime = [i for i, (kind, _) in enumerate(arguments) if kind != "constexpr"]
    special = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl")
    scratch = scratch_pointers(compiled.asm.get("ptx", ""), metadata.name, len(runtime))
    if scratch is None or metadata.num_ctas != 1 or any(getattr(metadata, name, 0) for name in special):
        return None
    letters = [_LETTERS.get(arguments[i][0], "p") for i in runtime]
    native = _native.load()
    kernel = native.Kernel(
        native.Binary(compiled.asm["cubin"]), metadata.name, "".join(letters) + "0" * scratch
    )
    threads = metadata.num_warps * metadata.target.warp_size
    return _Launchable(kernel, threads, metadata.shared, tuple(runtime))


class TritonKernel:
    """A ``@triton.jit`` function that is compiled once for each kind of argument and launched directly.

    Arguments are those of the function's parameters in order, ``tl.constexpr`` parameters by keyword. The
    kind of an argument is its `specialise`. Under TRITON_INTERPRET=1 Triton's interpreter runs the function,
    one thread at a time.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        # What the interpreter wraps cannot be compiled. (Of an instance, cache_key would compute a hash.)
        self._interpreted = not hasattr(type(function), "cache_key")
        parameters = () if self._interpreted else function.params
        self._by_value = tuple(not p.do_not_specialize for p in parameters if not p.is_constexpr)
        annotated = inspect.signature(function.fn).parameters.values()
        self._constexprs = {p.name for p in annotated if "constexpr" in str(p.annotation)}
        self._arguments = [p.name for p in annotated if p.name not in self._constexprs]
        self._ready: dict[Any, Callable[[Grid, Sequence[Any]], None]] = {}
        self._lock = threading.Lock()

    def __call__(self, grid: Grid, *args: Tensor | float | None, num_warps: int, **constexprs: Any) -> None:
        """Launch ``grid`` programs on the current stream of the first argument's device, a tensor's.

        TypeError names the kernel and what is wrong with its arguments.
        """
        self._demand_arguments(args, constexprs)
        if self._interpreted:
            with _INTERPRETER:
                self.function[(*grid, 1, 1)[:3]](*args, **constexprs)
            return
        self._compiled(self._device(args), args, num_warps, constexprs)(grid, args)

    def ready(self, device: torch.device, *args: Any, num_warps: int, **constexprs: Any) -> Ready | None:
        """What such a launch on ``device`` comes down to; a `Buffer` may stand for a tensor.

        None where there is no native launch of it: interpreted, or left to Triton's own launcher.
        """
        self._demand_arguments(args, constexprs)
        if self._interpreted:
            return None
        compiled = self._compiled(device, args, num_warps, constexprs)
        return compiled.ready(args) if isinstance(compiled, _Launchable) else None

    def _compiled(
        self, device: torch.device, args: Sequence[Any], num_warps: int, constexprs: Mapping[str, Any]
    ) -> Callable[[Grid, Sequence[Any]], None]:
        try:
            arguments = tuple(map(specialise, args, self._by_value))
        except TypeError as error:
            raise TypeError(f"{self}: {error}") from None
        # Devices of one architecture share what is compiled; the kernel is loaded on each.
        key = (_arch(device.index), num_warps, arguments, tuple(constexprs.items()))
        return self._ready.get(key) or self._prepare(key, constexprs)

    def _demand_arguments(self, args: Sequence[Any], constexprs: Mapping[str, Any]) -> None:
        """TypeError where a call does not have the function's parameters."""
        if len(args) != len(self._arguments):
            wanted = f"{len(self._arguments)} arguments ({', '.join(self._arguments)})"
            raise TypeError(f"{self} takes {wanted}, got {len(args)}")
        if constexprs.keys() != self._constexprs:
            wanted, got = (", ".join(sorted(names)) or "none" for names in (self._constexprs, constexprs))
            raise TypeError(f"{self} takes constexprs {wanted}, got {got}")

    def _device(self, args: Sequence[Any]) -> torch.device:
        if not args or not isinstance(args[0], Tensor):
            got = type(args[0]).__name__ if args else "none"
            raise TypeError(
                f"{self}: the first argument must be a tensor, whose device it is launched on, got {got}"
            )
        return args[0].device

    def __str__(self) -> str:
        return f"Triton kernel {self.function.__name__!r}"

    def _prepare(self, key: Any, constexprs: Mapping[str, Any]) -> Callable[[Grid, Sequence[Any]], None]:
        arch, num_warps, arguments, _ = key
        with self._lock:
            if key not in self._ready:
                compiled = compile_triton(self.function, arguments, constexprs, arch, num_warps)
                own = self._triton_launch(compiled, constexprs)
                self._ready[key] = _launchable(compiled, arguments) or own
        return self._ready[key]

    def _triton_launch(
        self, compiled: Any, constexprs: Mapping[str, Any]
    ) -> Callable[[Grid, Sequence[Any]], None]:
        """Triton's own launcher, for kernels that are not `_launchable`. Wants constexprs in their places."""

        def launch(grid: Grid, args: Sequence[Any]) -> None:
            free = iter(args)
            everything = [
                constexprs[name] if name in constexprs else next(free) for name in self.function.arg_names
            ]
            with torch.cuda.device(args[0].device.index):
                compiled[(*grid, 1, 1)[:3]](*everything)

        return launch


@cache
def _arch(index: int) -> int:
    """Triton's number for the architecture of a CUDA device (of the claimed device of that index on it)."""
    if not torch.cuda.is_available():
        raise RuntimeError(
            "Triton kernels need an NVIDIA GPU; TRITON_INTERPRET=1 runs them on the host, slowly"
        )
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor
