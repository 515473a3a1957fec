"""The ops of each family, for the techniques that implement all of them."""

from __future__ import annotations

from typing import Final

__all__ = ["FAMILIES"]

FAMILIES: Final = {
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
"""By the name of the file that a technique has for a family. Each function bears the name of its op."""
