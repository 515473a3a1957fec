"""TE-FL's description of an implementation, and what the registry makes of it."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tefl
from tefl._env import parse_token
from tefl._errors import ConfigError
from tefl._log import logger
from tefl.dispatch import BackendImplKind
from tefl.dispatch.select import matches

from ._conventions import convention_of
from ._dtypes import named_dtype

__all__ = ["BackendImplKind", "OpImpl", "match_token"]


@dataclass(frozen=True)
class OpImpl:
    """One implementation as a TE-FL plugin describes it; ``fn`` takes Transformer Engine's arguments."""

    op_name: str
    impl_id: str
    kind: BackendImplKind
    fn: Callable[..., Any]
    vendor: str | None = None
    priority: int = 0
    supported_dtypes: Collection[Any] | None = None
    min_arch: Any = None

    def __post_init__(self) -> None:
        self.__tefl_impl__()  # so that what is wrong with it is said where it is made

    def is_available(self) -> bool:
        """What the function's ``_is_available`` answers; True where it has none."""
        available = getattr(self.fn, "_is_available", None)
        return bool(available()) if callable(available) else True

    def __tefl_impl__(self) -> tefl.OpImpl:
        """The same for tefl's registry, with a function that tefl can call."""
        return tefl.OpImpl(
            self.op_name,
            self.impl_id,
            self.kind,
            PluginFunction(self),
            vendor=self.vendor,
            priority=self.priority,
            supported_dtypes=_dtypes(self.supported_dtypes, self.impl_id),
            min_arch=_arch(self.min_arch, self.impl_id),
        )


def _dtypes(given: Collection[Any] | str | None, impl_id: str) -> frozenset[Any] | None:
    """Words as torch dtypes. Those that torch has no dtype for, such as "fp8", are left aside, which is said
    once; where there are no others nothing is compared."""
    if given is None:
        return None
    words = [given] if isinstance(given, str) else list(given)
    known = {word: named_dtype(word) for word in words}
    for word in [word for word, dtype in known.items() if dtype is None]:
        _warn_unknown(impl_id, "supported_dtypes", word, "no dtype of torch's")
    found = frozenset(dtype for dtype in known.values() if dtype is not None)
    return None if words and not found else found


def _arch(given: Any, impl_id: str) -> Any:
    """A compute capability, "sm_90" included. Another vendor's word is not compared, which is said once."""
    if given is None or isinstance(given, (int, tuple)) or re.fullmatch(r"\d+(\.\d+)?", str(given)):
        return given
    if match := re.fullmatch(r"sm_?(\d+)(\d)", str(given)):
        return int(match[1]), int(match[2])
    _warn_unknown(impl_id, "min_arch", str(given), "no compute capability")
    return None


@functools.cache
def _warn_unknown(impl_id: str, field: str, given: str, what: str) -> None:
    logger().warning("%r: %s=%r is %s and is not compared", impl_id, field, given, what)


class Door:
    """A call that came in Transformer Engine's convention, while it is dispatched in ours."""

    __slots__ = ("answer", "args", "kwargs", "op_name")

    def __init__(self, op_name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.op_name, self.args, self.kwargs = op_name, args, kwargs
        self.answer: tuple[Any, Any] | None = None
        """What a plugin's function returned, as it is and as our results."""


open_door: ContextVar[Door | None] = ContextVar("tefl_te_door", default=None)


class PluginFunction:
    """A plugin's function as tefl calls it: our arguments in, our results out.

    Where the call came in Transformer Engine's convention the function gets that very call.
    """

    def __init__(self, impl: OpImpl) -> None:
        if not callable(impl.fn):
            raise TypeError(
                f"OpImpl {impl.impl_id!r} for op {impl.op_name!r}: fn must be callable, got {impl.fn!r}"
            )
        self.impl = impl
        self._is_available = getattr(impl.fn, "_is_available", None)
        self._takes_theirs: bool | None = None
        functools.update_wrapper(self, impl.fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mapping = convention_of(self.impl.op_name)
        if mapping is None:
            return self.impl.fn(*args, **kwargs)
        convention, schema = mapping
        door = open_door.get()
        if door is not None and door.op_name == self.impl.op_name:
            answer = self._through(door)
            door.answer = answer, convention.understood(answer)
            return door.answer[1]
        theirs = convention.to_theirs({**dict(zip(schema.positional, args, strict=True)), **kwargs})
        if self._takes_theirs is None:
            self._takes_theirs = _binds(self.impl.fn, theirs)
        answer = self.impl.fn(*theirs) if self._takes_theirs else self.impl.fn(*args, **kwargs)
        return convention.understood(answer)

    def _through(self, door: Door) -> Any:
        token = open_door.set(None)  # what the function itself calls is another call
        try:
            return self.impl.fn(*door.args, **door.kwargs)
        finally:
            open_door.reset(token)


def _binds(function: Callable[..., Any], args: list[Any]) -> bool:
    """Whether the function takes these positional arguments; TE-FL's own examples take fewer."""
    try:
        inspect.signature(function).bind(*args)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell
        return True
    return True


def match_token(impl: Any, token: str) -> bool:
    """Whether an implementation is meant by a token of an order: flagos, vendor:NAME, impl:ID and so on."""
    try:
        return matches(impl, parse_token(token))
    except ConfigError:  # no element of an order, which is nobody's
        return False
