"""Names that are well formed and that nothing bears, in a policy or a registration: most likely misspelt."""

from __future__ import annotations

from collections.abc import Collection

from .._env import normal_vendor
from .._errors import close_match, nearest
from .policy import SelectionPolicy
from .registry import OpRegistry

__all__ = ["misspelt_ops", "unknown_names"]


def unknown_names(policy: SelectionPolicy, ops: Collection[str], registry: OpRegistry) -> dict[str, str]:
    """Name -> message for every op, vendor and impl_id of the policy that is not among the known ones."""
    vendors, impl_ids = set(map(normal_vendor, registry.vendors())), registry.impl_ids()
    tokens = [token.partition(":") for order in policy.per_op_order.values() for token in order]
    named_vendors = {name for head, _, name in tokens if head == "vendor" and name}
    named_vendors |= {*policy.deny_vendors, *(policy.allow_vendors or ())}
    named_impls = {name for head, _, name in tokens if head == "impl"}
    return {
        **_messages("op", set(policy.per_op_order) - set(ops), ops),
        **_messages("vendor", named_vendors - vendors, vendors),
        **_messages("implementation", named_impls - set(impl_ids), impl_ids),
    }


def _messages(what: str, unknown: Collection[str], known: Collection[str]) -> dict[str, str]:
    return {
        f"{what} {name}": f"the policy names {what} {name!r}, which nobody registered; {nearest(name, known)}"
        for name in sorted(unknown)
    }


def misspelt_ops(
    registry: OpRegistry, undeclared: Collection[str], declared: Collection[str]
) -> dict[str, str]:
    """Op -> message for every op that is implemented, not declared, and named much like one that is.

    Ops without a declaration may be registered on purpose, softmax_fwd for instance, which shares its ending
    with rmsnorm_fwd: only one that is a slip of the pen away is mentioned.
    """
    found = {op: close_match(op, declared, cutoff=0.85) for op in undeclared}
    return {op: _misspelt(op, near, registry) for op, near in found.items() if near is not None}


def _misspelt(op: str, near: str, registry: OpRegistry) -> str:
    impl_ids = ", ".join(impl.impl_id for impl in registry.implementations(op))
    return f"{impl_ids} implements op {op!r}, which nobody declared; was {near!r} meant?"
