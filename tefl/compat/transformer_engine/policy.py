"""TE-FL's policy functions over tefl's: one policy for both."""

from __future__ import annotations

from typing import Any

from tefl._env import KINDS
from tefl.dispatch import (
    SelectionPolicy as _SelectionPolicy,
)
from tefl.dispatch import (
    policy_context,
    reset_global_policy,
    with_allowed_vendors,
    with_denied_vendors,
    with_preference,
    with_strict_mode,
)
from tefl.dispatch import set_global_policy as _set_global_policy
from tefl.dispatch.lock import epoch
from tefl.dispatch.policy import current_policy, policy_from_env
from tefl.dispatch.select import vendor_veto

__all__ = [
    "PREFER_DEFAULT",
    "PREFER_REFERENCE",
    "PREFER_VENDOR",
    "VALID_PREFER_VALUES",
    "SelectionPolicy",
    "bump_policy_epoch",
    "get_policy",
    "get_policy_epoch",
    "policy_context",
    "policy_from_env",
    "reset_global_policy",
    "set_global_policy",
    "with_allowed_vendors",
    "with_denied_vendors",
    "with_preference",
    "with_strict_mode",
]

PREFER_DEFAULT, PREFER_VENDOR, PREFER_REFERENCE = KINDS
VALID_PREFER_VALUES = frozenset(KINDS)


class SelectionPolicy(_SelectionPolicy):
    """`tefl.SelectionPolicy` with the questions that TE-FL's answers."""

    @classmethod
    def from_dict(cls, **fields: Any) -> SelectionPolicy:
        """The same as the class itself; the per-op orders may be lists."""
        return cls(**fields)

    @property
    def per_op_order_dict(self) -> dict[str, list[str]]:
        """The orders given for single ops."""
        return {op: list(order) for op, order in self.per_op_order.items()}

    def get_per_op_order(self, op_name: str) -> list[str] | None:
        """The order given for an op, None where there is none."""
        return self.per_op_order_dict.get(op_name)

    def get_default_order(self) -> list[str]:
        """The order of kinds for ops that have none of their own."""
        return list(self.order("")[0])

    def is_vendor_allowed(self, vendor: str) -> bool:
        """Whether implementations of a vendor may run."""
        return vendor_veto(vendor, self) is None


def get_policy() -> _SelectionPolicy:
    """The policy that applies to calls made here."""
    return current_policy()


def set_global_policy(policy: _SelectionPolicy) -> _SelectionPolicy:
    """Make ``policy`` that of the process; returns the one that applied."""
    before = current_policy()
    _set_global_policy(policy)
    return before


def get_policy_epoch() -> int:
    """A number that grows with every change of policies and registries."""
    return epoch.now


def bump_policy_epoch() -> int:
    """Have every decision made anew; returns the new number."""
    epoch.advance()
    return epoch.now
