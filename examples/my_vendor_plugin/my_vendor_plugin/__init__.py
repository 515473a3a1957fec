"""One vendor's implementation of an op, in a package of its own that tefl knows nothing of."""

from __future__ import annotations

from typing import Any

import torch

from tefl import BackendImplKind, OpImpl, OpRegistry


def my_rmsnorm(
    input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise rows by their root mean square; also its reciprocal, with a last dimension of one."""
    if kwargs.get("zero_centered_gamma"):  # an option taken and not looked at would be a wrong result
        weight = 1 + weight
    rsigma = torch.rsqrt(input.pow(2).mean(-1, keepdim=True) + eps)
    return input * rsigma * weight, rsigma


def register(registry: OpRegistry) -> None:
    """Called by tefl when it first needs an implementation."""
    registry.register_impl(
        OpImpl(
            op_name="rmsnorm_fwd",
            impl_id="vendor.myvendor",
            kind=BackendImplKind.VENDOR,
            vendor="myvendor",
            fn=my_rmsnorm,
            priority=200,
        )
    )
