"""A decision as a value: the winner, and for every other implementation the reason why not.

Its text is what `tefl.explain`, `python -m tefl explain`, the debug log and the error of a call that nothing
can serve all show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .policy import SelectionPolicy
from .select import Verdict, accepts, available, excluded, pick, rank
from .types import BackendImplKind, Facts, OpImpl, Slower

__all__ = ["VERIFYING", "Candidate", "Decision", "decide"]

VERIFYING = "every result is compared with the fake function's promise and with the reference"


@dataclass(frozen=True)
class Candidate:
    """One implementation in a decision. ``accepted``: it fits the call and the policy, chosen or not."""

    impl_id: str
    kind: BackendImplKind
    vendor: str | None
    priority: int
    accepted: bool
    reason: str
    impl: OpImpl = field(repr=False, compare=False)
    provenance: str | None = None
    """Whose code the implementation runs, where it says so: a backend's specialisation of its kernels."""


@dataclass(frozen=True)
class Decision:
    """What a call comes to; ``candidates`` are in the order in which the policy tries them."""

    op_name: str
    facts: Facts
    policy: SelectionPolicy
    candidates: tuple[Candidate, ...]
    winner: Candidate | None
    verified: bool = False
    """Whether TEFL_CHECK=1 has the results of such a call compared."""

    def __str__(self) -> str:
        width = max((len(c.impl_id) for c in self.candidates), default=0)
        lines = [f"Op {self.op_name!r} on {self.facts.describe()}, policy {self.policy}"]
        lines += [f"  TEFL_CHECK=1: {VERIFYING}"] * self.verified
        lines += [self._line(candidate, width) for candidate in self.candidates]
        return "\n".join(lines if self.candidates else [*lines, "  no implementation is registered"])

    def _line(self, candidate: Candidate, width: int) -> str:
        mark = "->" if candidate is self.winner else "  "
        about = f"kind={candidate.kind}, vendor={candidate.vendor}, priority={candidate.priority}"
        whose = f" [{candidate.provenance}]" if candidate.provenance else ""
        return f"  {mark} {candidate.impl_id:{width}}  ({about}): {candidate.reason}{whose}"


def decide(
    op_name: str,
    impls: Sequence[OpImpl],
    policy: SelectionPolicy,
    facts: Facts,
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None,
    failed: Mapping[str, str] | None = None,
) -> Decision:
    """Judge every implementation. ``failed`` says, by impl_id, which have failed before and how.

    Without ``arguments`` the predicates on arguments are not asked.
    """

    def judge(impl: OpImpl) -> Verdict:
        verdict: Verdict = (failed or {}).get(impl.impl_id) or available(impl, facts)
        if isinstance(verdict, str) or arguments is None:
            return verdict
        return accepts(impl, *arguments) or verdict

    ranked = rank(op_name, impls, policy)
    verdicts = {impl.impl_id: judge(impl) for impl in ranked}
    chosen = pick(ranked, lambda impl: verdicts[impl.impl_id])
    candidates = {impl.impl_id: _candidate(impl, verdicts[impl.impl_id], chosen) for impl in ranked}
    for impl in impls:
        if impl.impl_id not in candidates:
            candidates[impl.impl_id] = _candidate(impl, excluded(op_name, impl, policy), chosen)
    winner = candidates[chosen.impl_id] if chosen is not None else None
    return Decision(op_name, facts, policy, tuple(candidates.values()), winner)


def _candidate(impl: OpImpl, verdict: Verdict, chosen: OpImpl | None) -> Candidate:
    accepted = not isinstance(verdict, str)
    if isinstance(verdict, str):
        reason = verdict
    elif isinstance(verdict, Slower):
        reason = f"fits, but names {verdict.impl_id!r} as faster: {verdict.why}"
    else:
        reason = "fits"
    if impl is chosen:
        reason = f"chosen; {reason}"
    elif accepted and not isinstance(verdict, Slower):
        reason = "fits, but comes later in the order"
    tell = getattr(impl.fn, "provenance", None)
    provenance = tell() if callable(tell) else None
    return Candidate(impl.impl_id, impl.kind, impl.vendor, impl.priority, accepted, reason, impl, provenance)
