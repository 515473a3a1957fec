"""The norm ops in float64 by torch's own functions, and how far a result may be from that.

What is not a two-line formula here is torch's: `torch.nn.functional.layer_norm` and `rms_norm`, and autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["assert_near", "gamma", "layer_norm", "layer_norm_statistics", "rms_norm", "rms_norm_statistics"]


def gamma(weight: Tensor, zero_centered: bool) -> Tensor:
    return weight.double() + 1 if zero_centered else weight.double()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, zero_centered: bool) -> Tensor:
    shift = None if bias is None else bias.double()
    return functional.layer_norm(x.double(), x.shape[-1:], gamma(weight, zero_centered), shift, eps)


def layer_norm_statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """mu and rsigma."""
    mu = x.double().mean(-1)
    variance = (x.double() - mu.unsqueeze(-1)).pow(2).mean(-1)
    return mu, (variance + eps) ** -0.5


def rms_norm(x: Tensor, weight: Tensor, eps: float, zero_centered: bool) -> Tensor:
    return functional.rms_norm(x.double(), x.shape[-1:], gamma(weight, zero_centered), eps)


def rms_norm_statistics(x: Tensor, eps: float) -> Tensor:
    """rsigma."""
    return (x.double().pow(2).mean(-1) + eps) ** -0.5


def assert_near(got: Tensor, exact: Tensor, terms: Tensor, computed: torch.dtype) -> None:
    """The error is that of float arithmetic in ``computed``, and of one rounding to the result's dtype.

    Each element may be off by half a unit of its own dtype, plus 16 roundings of the terms it is made of
    (``terms``, the sum of their magnitudes; it is larger than the result where they cancel). 16 covers a sum
    of 2^10 terms in pairs, the square root and the products. A result that was rounded on the way, as
    statistics kept in bfloat16 are, is off by 2^7 times that.
    """
    assert got.shape == exact.shape
    unit, tiny = (
        torch.finfo(got.dtype).eps / 2,
        torch.finfo(got.dtype).smallest_normal * torch.finfo(got.dtype).eps,
    )
    allowed = unit * exact.abs() + 16 * torch.finfo(computed).eps / 2 * terms + tiny
    off = (got.double() - exact).abs() / allowed
    assert off.numel() == 0 or off.max() <= 1, f"off by {off.max():.3g} times what is allowed"
