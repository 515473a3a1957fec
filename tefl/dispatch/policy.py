"""Which implementations are preferred, allowed and denied: the policy of the process, and contexts over it.

A policy has a number, its token. Token 0 is the policy of the process, whatever that is at the time; each
other policy gets a number of its own when a context first applies it. An autograd node keeps the token of its
forward, so the backward follows the same policy on whichever thread it runs.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from .. import _env
from .._env import KINDS, normal_vendor, parse_order, parse_token
from .._errors import ConfigError
from . import shared
from .lock import LOCK, epoch

__all__ = [
    "PolicyContext",
    "SelectionPolicy",
    "checkpoint_contexts",
    "current_policy",
    "current_token",
    "policy_context",
    "policy_from_env",
    "policy_of",
    "reset_global_policy",
    "set_global_policy",
    "use_token",
    "with_allowed_vendors",
    "with_denied_vendors",
    "with_preference",
    "with_strict_mode",
]

_Context: TypeAlias = contextlib.AbstractContextManager[object]
_Function = TypeVar("_Function", bound=Callable[..., Any])
_SUSPENDED = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

_ORDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "flagos": ("flagos", "vendor", "reference"),
    "vendor": ("vendor", "flagos", "reference"),
    "reference": ("reference", "flagos", "vendor"),
}


class _Unstated(str):
    """A preference that nobody asked for, so that strictness does not insist on it."""


@dataclass(frozen=True, eq=False)
class SelectionPolicy:
    """The rules by which an implementation is chosen.

    ``prefer`` is the kind tried first: "flagos" (then vendor, reference), "vendor" (then flagos, reference)
    or "reference" (then flagos, vendor). ``per_op_order`` gives single ops their whole order, a list of
    tokens (flagos, vendor, reference, vendor:NAME, impl:ID) or one string of them separated by ``|``.
    ``allow_vendors`` and ``deny_vendors`` speak of implementations of kind vendor only; an empty one is as
    if unset. Vendor names compare case-insensitively, "cuda" is nvidia's. With ``strict`` a failure of the
    chosen implementation is the caller's, and a stated order must be served by its first token.
    """

    prefer: str = _Unstated("flagos")
    strict: bool = False
    per_op_order: Mapping[str, Iterable[str] | str] = field(default_factory=dict)
    deny_vendors: Collection[str] = ()
    allow_vendors: Collection[str] | None = None

    def __post_init__(self) -> None:
        if str(self.prefer).lower() not in KINDS:
            raise ConfigError(f"prefer={self.prefer!r}: accepted: {', '.join(KINDS)}")
        if not isinstance(self.prefer, _Unstated):
            object.__setattr__(self, "prefer", str(self.prefer).lower())
        if self.strict not in (True, False):
            raise ConfigError(f"strict={self.strict!r}: accepted: True, False")
        if not isinstance(self.per_op_order, Mapping):
            raise ConfigError(
                f"per_op_order={self.per_op_order!r}: give a mapping, such as {{'op': 'flagos'}}"
            )
        orders = {op: _tokens(op, order) for op, order in self.per_op_order.items()}
        object.__setattr__(self, "per_op_order", MappingProxyType(orders))
        object.__setattr__(self, "deny_vendors", _vendors("deny_vendors", self.deny_vendors))
        object.__setattr__(self, "allow_vendors", _vendors("allow_vendors", self.allow_vendors or ()) or None)

    def order(self, op_name: str) -> tuple[tuple[str, ...], bool]:
        """The tokens to try for an op, and whether somebody asked for that order."""
        if (order := self.per_op_order.get(op_name)) is not None:
            return tuple(order), True
        return _ORDERS[self.prefer], not isinstance(self.prefer, _Unstated)

    def __reduce__(self) -> tuple[type[SelectionPolicy], tuple[object, ...]]:
        """To other processes and into copies, whose read-only mapping of orders is their own."""
        orders = dict(self.per_op_order)
        return type(self), (self.prefer, self.strict, orders, self.deny_vendors, self.allow_vendors)

    def key(self) -> tuple[object, ...]:
        """Equal for policies that decide alike."""
        orders = frozenset((op, tuple(order)) for op, order in self.per_op_order.items())
        stated = not isinstance(self.prefer, _Unstated)
        return (str(self.prefer), stated, self.strict, orders, self.deny_vendors, self.allow_vendors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SelectionPolicy) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __str__(self) -> str:
        parts = [f"prefer={self.prefer}", f"strict={int(self.strict)}"]
        parts += [f"{op}={'|'.join(order)}" for op, order in self.per_op_order.items()]
        parts += [f"deny={','.join(sorted(self.deny_vendors))}"] if self.deny_vendors else []
        parts += [f"allow={','.join(sorted(self.allow_vendors))}"] if self.allow_vendors else []
        return " ".join(parts)


def _tokens(op_name: str, order: Iterable[str] | str) -> tuple[str, ...]:
    if not isinstance(op_name, str):
        raise ConfigError(f"per_op_order[{op_name!r}]: an op is given by its name, a string")
    try:
        tokens = parse_order(order) if isinstance(order, str) else tuple(map(parse_token, order))
    except (AttributeError, TypeError):  # not a list, or not of strings
        raise ConfigError(
            f"per_op_order[{op_name!r}]={order!r}: give a string of tokens or a list of strings"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"per_op_order[{op_name!r}]: {error}") from None
    if not tokens:
        raise ConfigError(f"per_op_order[{op_name!r}] is empty: give at least one token, or leave the op out")
    return tokens


def _vendors(field_name: str, names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise ConfigError(f"{field_name}={names!r}: give a collection of vendor names, such as ({names!r},)")
    if not isinstance(names, Collection) or not all(isinstance(n, str) and n.strip() for n in names):
        raise ConfigError(f"{field_name}={names!r}: give a collection of vendor names, such as ('acme',)")
    return frozenset(map(normal_vendor, names))


def policy_from_env() -> SelectionPolicy:
    """The policy that the TE_FL_* variables ask for; ConfigError quotes what cannot be read."""
    prefer = _env.get("TE_FL_PREFER") or ("vendor" if _env.get("TE_FL_PREFER_VENDOR") else None)
    return SelectionPolicy(
        prefer=prefer or _Unstated("flagos"),
        strict=_env.get("TE_FL_STRICT"),
        per_op_order=_env.get("TE_FL_PER_OP"),
        deny_vendors=_env.get("TE_FL_DENY_VENDORS"),
        allow_vendors=_env.get("TE_FL_ALLOW_VENDORS"),
    )


# --- the policy of the process --------------------------------------------------------------------------

_global: SelectionPolicy | None = None


def set_global_policy(policy: SelectionPolicy) -> None:
    """Make ``policy`` that of the process, in place of the environment's."""
    global _global
    _demand_policy(policy)
    with LOCK:
        _global = policy
        epoch.advance()


def reset_global_policy() -> None:
    """Go back to the environment's policy, read anew when next needed."""
    global _global
    with LOCK:
        _global = None
        epoch.advance()


def _global_policy() -> SelectionPolicy:
    global _global
    with LOCK:
        if _global is None:
            _global = policy_from_env()
        return _global


def _demand_policy(policy: object) -> None:
    if not isinstance(policy, SelectionPolicy):
        raise TypeError(f"policy must be a tefl.SelectionPolicy, got {policy!r}")


# --- contexts -------------------------------------------------------------------------------------------


class _Frame:
    """One entered context. A task that inherited it sees it until it is left: then it has no token."""

    __slots__ = ("owner", "parent", "token")

    def __init__(self, owner: PolicyContext, token: int, parent: _Frame | None) -> None:
        self.owner, self.parent = owner, parent
        self.token: int | None = token


FRAME: ContextVar[_Frame | None] = ContextVar("tefl_policy", default=None)
"""The context that was entered last; it may have been left since."""
_tokens_of: dict[tuple[object, ...], int] = {}
_policies: list[SelectionPolicy] = []
# How many contexts are open anywhere: while it is 0, nobody has to look at the context variable.
open_contexts = 0


def current_token() -> int:
    """The number of the policy that applies here: 0 outside every context."""
    if shared.native is not None:  # knows of the backward that runs on this thread, too
        return int(shared.native.current_token())
    if open_contexts == 0:
        return 0
    frame = _innermost()
    return frame.token or 0 if frame is not None else 0


def _innermost() -> _Frame | None:
    frame = FRAME.get()
    while frame is not None and frame.token is None:
        frame = frame.parent
    return frame


def policy_of(token: int) -> SelectionPolicy:
    """The policy with that number."""
    return _policies[token - 1] if token else _global_policy()


def current_policy() -> SelectionPolicy:
    """The policy that applies to calls made here."""
    return policy_of(current_token())


def _token_of(policy: SelectionPolicy) -> int:
    with LOCK:
        token = _tokens_of.setdefault(policy.key(), len(_policies) + 1)
        if token > len(_policies):
            _policies.append(policy)
        return token


class PolicyContext(contextlib.ContextDecorator):
    """Applies a policy to the thread or task that enters it; may be entered again, also while it is open."""

    def __init__(self, find_token: Callable[[], int]) -> None:
        self._find_token = find_token
        self._entered: list[_Frame] = []

    def __call__(self, function: _Function) -> _Function:
        """The function, with each call of it inside this context."""
        if any(is_suspended(function) for is_suspended in _SUSPENDED):
            raise TypeError(
                f"{getattr(function, '__qualname__', function)!r} is a coroutine or generator function: its "
                "body runs after the call has returned: use `with` inside it instead of decorating it"
            )
        return super().__call__(function)

    def __enter__(self) -> PolicyContext:
        frame = _Frame(self, self._find_token(), _innermost())
        _count(+1)
        self._entered.append(frame)
        FRAME.set(frame)
        return self

    def __exit__(self, *exc_info: object) -> None:
        frame = FRAME.get()
        while frame is not None and not (frame.token is not None and frame.owner is self):
            frame = frame.parent
        if not self._entered:
            raise RuntimeError("a policy context was left more often than it was entered")
        # A generator may be closed by another thread than the one that entered: then its last frame goes.
        frame = frame or self._entered[-1]
        self._entered.remove(frame)
        frame.token = None
        _count(-1)
        FRAME.set(_innermost())


def _count(change: int) -> None:
    global open_contexts
    with LOCK:
        open_contexts += change
        shared.set_open_contexts(open_contexts)


def policy_context(policy: SelectionPolicy) -> PolicyContext:
    """Apply ``policy`` inside the ``with`` block."""
    _demand_policy(policy)
    return PolicyContext(lambda: _token_of(policy))


def _changed(change: Callable[[SelectionPolicy], SelectionPolicy]) -> PolicyContext:
    return PolicyContext(lambda: _token_of(change(current_policy())))


def with_strict_mode() -> PolicyContext:
    """The policy that applies at entry, but strict."""
    return _changed(lambda policy: replace(policy, strict=True))


def with_preference(prefer: str) -> PolicyContext:
    """The policy that applies at entry, but preferring "flagos", "vendor" or "reference"."""
    SelectionPolicy(prefer=prefer)  # a wrong word is an error here, not at entry
    return _changed(lambda policy: replace(policy, prefer=prefer))


def with_allowed_vendors(*names: str) -> PolicyContext:
    """The policy that applies at entry, but only these vendors may run; replaces an outer list."""
    allowed = _at_least_one("with_allowed_vendors", names)
    return _changed(lambda policy: replace(policy, allow_vendors=allowed))


def with_denied_vendors(*names: str) -> PolicyContext:
    """The policy that applies at entry, but these vendors may not run either."""
    denied = _at_least_one("with_denied_vendors", names)
    return _changed(lambda policy: replace(policy, deny_vendors=denied | frozenset(policy.deny_vendors)))


def _at_least_one(function: str, names: tuple[str, ...]) -> frozenset[str]:
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigError(f"{function}{names!r}: give at least one vendor name, such as {function}('acme')")
    return frozenset(map(normal_vendor, names))


def use_token(token: int) -> _Context:
    """Apply the policy with that number, as an autograd node does around its backward."""
    if token == 0 and open_contexts == 0:
        return contextlib.nullcontext()
    return PolicyContext(lambda: token)


def checkpoint_contexts() -> tuple[_Context, _Context]:
    """For ``torch.utils.checkpoint(..., context_fn=tefl.checkpoint_contexts)``: keeps the policy."""
    return contextlib.nullcontext(), use_token(current_token())
