"""What plain PyTorch implements: every op, on every device that has ATen."""

from __future__ import annotations

from collections.abc import Iterable

from tefl.dispatch.types import BackendImplKind, OpImpl
from tefl.kernels._lazy import lazy

__all__ = ["implementations"]

_OPS = {
    "norm": (
        "layernorm_fwd",
        "layernorm_bwd",
        "rmsnorm_fwd",
        "rmsnorm_bwd",
        "rmsnorm_bwd_add",
        "add_rmsnorm_fwd",
        "add_rmsnorm_bwd",
    ),
}
"""By file of this folder. Each function bears the name of its op."""


def implementations() -> Iterable[OpImpl]:
    """One ``reference.torch`` an op; nothing is imported until one runs."""
    for family, names in _OPS.items():
        for name in names:
            yield OpImpl(
                op_name=name,
                impl_id="reference.torch",
                kind=BackendImplKind.REFERENCE,
                fn=lazy(f"{__package__}.{family}", name),
                priority=50,
            )
