"""The vocabulary of dispatch: implementations, facts, declarations, answers. Plain data, no policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeVar

import torch

from .._errors import dtype_name
from .functions import deferred

__all__ = [
    "BackendImplKind",
    "Backward",
    "Deviation",
    "DispatchError",
    "Facts",
    "Feed",
    "NotSupported",
    "OpDecl",
    "OpImpl",
    "Slower",
    "UndeclaredWrite",
    "of_form",
]


class BackendImplKind(str, Enum):
    """Who an implementation belongs to: this project's defaults, a vendor, or plain PyTorch."""

    DEFAULT = "flagos"
    VENDOR = "vendor"
    REFERENCE = "reference"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class OpImpl:
    """One callable that computes one op.

    ``fn`` is called with the schema's positional arguments positionally and its keyword-only ones by
    keyword, all of them, defaults filled in. ``vendor`` is required for kind vendor. Of the implementations
    that a policy ranks alike the one of higher ``priority`` is tried first.

    ``supported_dtypes``: every floating-point tensor argument (every tensor argument where none is) must have
    one of these. ``min_arch``: a compute capability, ``(8, 0)``, ``"8.0"`` or ``8``. ``devices``: the device
    types it runs on, "cpu", "cuda", "privateuse1" for the claimed device under any name, or that name.
    ``None`` means no restriction.

    ``is_available`` is asked once for each kind of call (device, dtypes, policy), without an argument, or
    with the `Facts` if it has a parameter without default. ``supports`` is asked at every call, with the
    call's arguments as ``fn`` gets them. Both answer ``None`` or ``True`` (fits), a reason string or
    ``False`` (does not), or `Slower`. A function attribute ``fn._is_available`` is honoured as a further
    ``is_available``. A predicate on arguments that is marked with `of_form` is asked once for calls that look
    alike.

    ``fn`` may have a method ``native_kernel(promise, args, kwargs)``, which the router asks once for calls
    that look like this one: it returns a capsule with what serves them in native code (csrc/dispatch), or
    None. ``promise`` are tensors of the form that results must have, None where ``fn`` is trusted with it.
    """

    op_name: str
    impl_id: str
    kind: BackendImplKind
    fn: Callable[..., Any]
    vendor: str | None = None
    priority: int = 0
    supported_dtypes: Collection[torch.dtype] | None = None
    min_arch: tuple[int, int] | str | int | None = None
    devices: Collection[str] | None = None
    is_available: Callable[..., Any] | None = None
    supports: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        where = f"OpImpl {self.impl_id!r} for op {self.op_name!r}"
        if not callable(self.fn):
            raise TypeError(f"{where}: fn must be callable, got {self.fn!r}")
        object.__setattr__(self, "kind", _kind(self.kind, where))
        _demand_fields(self, where)
        if self.kind is BackendImplKind.VENDOR and not (self.vendor or "").strip():
            raise ValueError(f"{where}: kind 'vendor' needs vendor='<name>', got {self.vendor!r}")
        object.__setattr__(self, "min_arch", _parse_arch(self.min_arch, where))
        if self.devices is not None:
            names = (self.devices,) if isinstance(self.devices, str) else self.devices
            object.__setattr__(self, "devices", tuple(name.lower() for name in names))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the implementation as it is: no defaults filled in, no checks, no repair of its results."""
        return self.fn(*args, **kwargs)


_WORD = "a name without spaces and without | ; , which separate names in a policy"
_ORDINARY = "an ordinary function, not a coroutine or generator function, which computes nothing when called"
_FUNCTIONS = ("fn", "supports", "is_available")


def _demand_fields(impl: OpImpl, where: str) -> None:
    """TypeError for what would otherwise strike at the calls of the op, others' implementations included."""
    fields: tuple[tuple[str, str, bool], ...] = (
        ("op_name", "a name", _is_name(impl.op_name)),
        ("impl_id", _WORD, _is_word(impl.impl_id)),
        ("vendor", "a name or None", impl.vendor is None or isinstance(impl.vendor, str)),
        ("vendor", _WORD, not str(impl.vendor or "").strip() or _is_word(impl.vendor)),
        ("priority", "a number", isinstance(impl.priority, (int, float)) and impl.priority == impl.priority),
        ("supported_dtypes", "a collection of torch.dtype", _all_are(torch.dtype, impl.supported_dtypes)),
        ("supported_dtypes", "None where all are meant", _has_any(impl.supported_dtypes)),
        ("devices", "a collection of device types", _all_are(str, impl.devices)),
        ("supports", "callable or None", impl.supports is None or callable(impl.supports)),
        ("is_available", "callable, a bool or None", _is_predicate(impl.is_available)),
        *((name, _ORDINARY, deferred(getattr(impl, name)) is None) for name in _FUNCTIONS),
    )
    for name, wanted, holds in fields:
        if not holds:
            raise TypeError(f"{where}: {name} must be {wanted}, got {getattr(impl, name)!r}")


def _kind(given: object, where: str) -> BackendImplKind:
    try:
        return BackendImplKind(given)
    except ValueError:
        kinds = ", ".join(kind.value for kind in BackendImplKind)
        raise ValueError(f"{where}: kind must be one of {kinds}, got {given!r}") from None


def _is_predicate(given: object) -> bool:
    return given is None or isinstance(given, bool) or callable(given)


def _is_name(given: object) -> bool:
    return isinstance(given, str) and bool(given.strip())


def _is_word(given: object) -> bool:
    return _is_name(given) and not any(c.isspace() or c in "|;," for c in str(given))


def _has_any(given: Collection[object] | None) -> bool:
    return given is None or not isinstance(given, Collection) or len(given) > 0


def _all_are(kind: type, given: object) -> bool:
    return given is None or (isinstance(given, Collection) and all(isinstance(one, kind) for one in given))


def _parse_arch(given: tuple[int, int] | str | int | None, where: str) -> tuple[int, int] | None:
    if given is None:
        return None
    parts = given if isinstance(given, tuple) else str(given).split(".")
    if not 1 <= len(parts) <= 2 or not all(str(part).isdecimal() for part in parts):
        raise ValueError(f'{where}: min_arch must be (major, minor), "major.minor" or major, got {given!r}')
    return int(parts[0]), int(parts[1]) if len(parts) == 2 else 0


@dataclass(frozen=True)
class Facts:
    """What a static predicate may know about a call: plain data gathered from its tensors."""

    device_type: str
    """"cpu", "cuda", ..., or "privateuse1" for the claimed device whatever its name."""
    device_index: int | None = None
    dtypes: tuple[torch.dtype, ...] = ()
    """Of the tensor arguments, in the order of the schema."""
    arch: tuple[int, int] | None = None
    """The compute capability of the device, None where it has none."""
    provider: str | None = None
    """The active provider's own name ("sim", "maca"), whatever the device is called; None elsewhere."""
    alias: str | None = None
    """Where that provider's memory can be computed on: "cpu", "cuda" or "none"."""
    device_name: str | None = None
    """What the claimed device is called ("maca"); None on other devices."""

    @property
    def computes_on(self) -> str | None:
        """The device type whose kernels can compute on the memory: "cpu", "cuda", ..., or "none".

        None where nobody has claimed the device.
        """
        return self.alias if self.device_type == "privateuse1" else self.device_type

    def describe(self) -> str:
        """Device and dtypes in words: ``"maca:0 (float32, float32)"``."""
        name = self.device_name or self.device_type
        place = name if self.device_index is None else f"{name}:{self.device_index}"
        dtypes = ", ".join(map(dtype_name, self.dtypes))
        return f"{place} ({dtypes})" if dtypes else place


Feed = tuple[Literal["grad", "input", "output", "needs"], str | int]
"""Where an argument of a backward op comes from, by names of the forward's schema: the gradient of a result,
an argument, a result, or whether an argument needs a gradient. A result without a name is given by its
position.
"""


@dataclass(frozen=True)
class Backward:
    """How an op is differentiated through another op.

    ``args`` has one feed for each argument of the backward op's schema, in its order. A gradient that is
    undefined is passed as None where the backward's schema has an optional tensor, else as zeros.
    ``grads`` says, by the name of a forward argument, which of the backward's results (0 is the first) is its
    gradient; an argument that is not there has none. ``differentiable`` are the forward's results that carry
    a gradient, by name, or by position where they have none; empty: the first alone.
    """

    op: str
    args: tuple[Feed, ...]
    grads: Mapping[str, int]
    differentiable: tuple[str | int, ...] = ()


@dataclass(frozen=True)
class OpDecl:
    """One declared op.

    ``schema`` has no name: ``"(Tensor input, float eps=1e-5) -> Tensor"``. ``fake`` (a meta computation) and
    ``reference`` (plain PyTorch, the definition) have the schema's signature; so has ``check``, which raises
    a readable error on bad arguments and runs before any implementation is chosen.
    """

    name: str
    family: str
    schema: str
    fake: Callable[..., Any]
    reference: Callable[..., Any]
    check: Callable[..., Any] | None = None
    backward: Backward | None = None


class DispatchError(RuntimeError):
    """No implementation can serve a call, or the one that the policy insists on cannot; says why for each."""


class Deviation(RuntimeError):
    """Under TEFL_CHECK=1: an implementation's result is not what the fake function or the reference says."""


class UndeclaredWrite(RuntimeError):
    """An implementation has written an argument that its op leaves alone; none other runs on what is left."""


class NotSupported(RuntimeError):
    """An implementation's "not me", raised before it has touched anything: the next candidate runs."""


@dataclass(frozen=True)
class Slower:
    """A predicate's answer: this call fits, but ``impl_id`` is faster at it.

    Honoured only if that implementation is available, allowed by the policy and accepts the call.
    """

    impl_id: str
    why: str


F = TypeVar("F", bound=Callable[..., Any])


def of_form(predicate: F) -> F:
    """Mark a predicate on arguments whose answer is the same for all calls that look alike.

    That is: it follows from the tensors' dtypes, device, sizes, strides and whether 16 divides their
    addresses, and from the other arguments' values; not from what is in a tensor, nor from anything else.
    """
    predicate.follows_from_form = True  # type: ignore[attr-defined]
    return predicate
