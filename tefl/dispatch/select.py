"""Choosing an implementation: pure functions from facts and a policy to a decision that can be read.

The predicates of implementations are asked here; what they raise becomes a reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .._env import normal_vendor
from .._errors import dtype_name, one_line
from .policy import SelectionPolicy
from .surfacing import EXHAUSTION
from .types import BackendImplKind, Facts, OpImpl, Slower

__all__ = [
    "Raised",
    "Verdict",
    "accepts",
    "available",
    "excluded",
    "follows_from_form",
    "matches",
    "pick",
    "rank",
    "vendor_veto",
]

Verdict = str | Slower | None
"""None: fits. A string: does not, and why. `Slower`: fits, but another is faster."""


class Raised(str):
    """A reason that was an exception of the predicate."""


def rank(op_name: str, impls: Iterable[OpImpl], policy: SelectionPolicy) -> list[OpImpl]:
    """The implementations that the policy lets run, in the order in which it tries them."""
    tokens, stated = policy.order(op_name)
    if policy.strict and stated:
        tokens = tokens[:1]
    allowed = [impl for impl in impls if _veto(impl, policy) is None]
    allowed.sort(key=lambda impl: (-impl.priority, impl.impl_id))
    ranked: dict[str, OpImpl] = {}
    for token in tokens:
        for impl in allowed:
            if matches(impl, token):
                ranked.setdefault(impl.impl_id, impl)
    return list(ranked.values())


def excluded(op_name: str, impl: OpImpl, policy: SelectionPolicy) -> str:
    """Why the policy does not let an implementation run."""
    if (veto := _veto(impl, policy)) is not None:
        return veto
    tokens, _ = policy.order(op_name)
    if any(matches(impl, token) for token in tokens):
        return f"strict: the first of the order, {tokens[0]!r}, must supply the implementation"
    return f"not in the order given for this op, {'|'.join(tokens)}"


def _veto(impl: OpImpl, policy: SelectionPolicy) -> str | None:
    return vendor_veto(impl.vendor or "", policy) if impl.kind is BackendImplKind.VENDOR else None


def vendor_veto(vendor: str, policy: SelectionPolicy) -> str | None:
    """Why a vendor's implementations may not run; None where they may."""
    name = normal_vendor(vendor)
    if name in policy.deny_vendors:
        return f"vendor {vendor!r} is denied"
    if policy.allow_vendors is not None and name not in policy.allow_vendors:
        allowed = ", ".join(sorted(policy.allow_vendors))
        return f"vendor {vendor!r} is not among the allowed ones, {allowed}"
    return None


def matches(impl: Any, token: str) -> bool:
    """Whether an implementation is meant by an element of an order in its canonical form."""
    head, _, name = token.partition(":")
    if head == "impl":
        return bool(impl.impl_id == name)
    return bool(impl.kind == head) and (not name or normal_vendor(impl.vendor or "") == name)


def available(impl: OpImpl, facts: Facts) -> Verdict:
    """Whether an implementation can run at all on such a device and such dtypes."""
    for restriction in (_device, _dtypes, _arch):
        if (reason := restriction(impl, facts)) is not None:
            return reason
    answer: Verdict = None
    on_function = getattr(impl.fn, "_is_available", None)
    for name, predicate in (("is_available", impl.is_available), ("fn._is_available", on_function)):
        if predicate is not None:
            verdict = _ask(f"{name}()", _static_call(predicate, facts))
            if isinstance(verdict, str):
                return verdict
            answer = answer or verdict
    return answer


def accepts(impl: OpImpl, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Verdict:
    """Whether an implementation takes these very arguments."""
    supports = impl.supports
    return None if supports is None else _ask("supports()", lambda: supports(*args, **kwargs))


def follows_from_form(impl: OpImpl) -> bool:
    """Whether it takes all calls that look like one that it takes."""
    return impl.supports is None or getattr(impl.supports, "follows_from_form", False)


def pick(ranked: Sequence[OpImpl], verdict: Callable[[OpImpl], Verdict]) -> OpImpl | None:
    """The first that fits; where it names a faster one that is ranked too and fits, that one."""
    for impl in ranked:
        answer = verdict(impl)
        if isinstance(answer, Slower):
            faster = (other for other in ranked if other.impl_id == answer.impl_id)
            return next((other for other in faster if not isinstance(verdict(other), str)), impl)
        if answer is None:
            return impl
    return None


def _device(impl: OpImpl, facts: Facts) -> str | None:
    if impl.devices is None or facts.device_type in impl.devices or facts.device_name in impl.devices:
        return None
    return f"runs on {', '.join(impl.devices)}, not on {facts.device_name or facts.device_type}"


def _dtypes(impl: OpImpl, facts: Facts) -> str | None:
    if impl.supported_dtypes is None:
        return None
    floating = [dtype for dtype in facts.dtypes if dtype.is_floating_point]
    wrong = [dtype for dtype in floating or facts.dtypes if dtype not in impl.supported_dtypes]
    if not wrong:
        return None
    return f"takes {_names(impl.supported_dtypes)}, not {_names(dict.fromkeys(wrong))}"


def _names(dtypes: Iterable[Any]) -> str:
    return ", ".join(map(dtype_name, dtypes))


def _arch(impl: OpImpl, facts: Facts) -> str | None:
    wanted: Any = impl.min_arch
    if wanted is None or (facts.arch is not None and facts.arch >= wanted):
        return None
    has, device = ".".join(map(str, facts.arch or ())) or "none", facts.device_name or facts.device_type
    return f"needs compute capability {wanted[0]}.{wanted[1]}, {device} has {has}"


def _static_call(predicate: Any, facts: Facts) -> Callable[[], Any]:
    if not callable(predicate):
        return lambda: predicate
    try:
        parameters = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return lambda: predicate()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wants_facts = any(p.kind in positional and p.default is p.empty for p in parameters)
    return (lambda: predicate(facts)) if wants_facts else lambda: predicate()


def _ask(what: str, question: Callable[[], Any]) -> Verdict:
    """An answer in one form. What the predicate raises is the reason, not a plain no: but for want of memory
    or of stack, which says nothing about the implementation."""
    try:
        answer = question()
        if answer is None or isinstance(answer, Slower):
            return answer
        if isinstance(answer, str):
            return answer or f"{what} gave no reason"
        return None if answer else f"{what} answered {answer!r}"
    except EXHAUSTION:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's predicate may raise anything; it is reported
        return Raised(f"{what} raised {one_line(error)}")
