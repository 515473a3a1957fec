"""What plain PyTorch implements: every op, on every device that has ATen."""

from __future__ import annotations

from collections.abc import Iterable

from tefl._lazy import Lazy
from tefl.dispatch.types import BackendImplKind, OpImpl
from tefl.kernels._families import FAMILIES

__all__ = ["implementations"]


def implementations() -> Iterable[OpImpl]:
    """One ``reference.torch`` an op; nothing is imported until one runs."""
    for family, names in FAMILIES.items():
        for name in names:
            yield OpImpl(
                op_name=name,
                impl_id="reference.torch",
                kind=BackendImplKind.REFERENCE,
                fn=Lazy(f"{__package__}.{family}", name),
                priority=50,
            )
