"""Add an implementation of an op in three steps: write it, register it, call it through a manager.

python examples/example_intree.py
"""

from __future__ import annotations

from typing import Any

import torch

from tefl import BackendImplKind, OpImpl, OpManager, OpRegistry, with_preference


# 1. Write the implementation.
def my_rmsnorm(
    input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise rows by their root mean square; also its reciprocal, with a last dimension of one."""
    if kwargs.get("zero_centered_gamma"):  # an option taken and not looked at would be a wrong result
        weight = 1 + weight
    variance = input.pow(2).mean(-1, keepdim=True)
    return input * torch.rsqrt(variance + eps) * weight, torch.rsqrt(variance + eps)


def main() -> None:
    """Register it and call it."""
    # 2. Register it. The built-in implementations join the registry at first use.
    registry = OpRegistry()
    registry.register_impl(
        OpImpl(
            op_name="rmsnorm_fwd",
            impl_id="vendor.mybackend",
            kind=BackendImplKind.VENDOR,
            vendor="mybackend",
            fn=my_rmsnorm,
            priority=200,
        )
    )

    # 3. Call the op through a manager. On a GPU the default would be this project's Triton kernel.
    manager = OpManager(registry)
    input, weight = torch.randn(4, 64), torch.ones(64)
    with with_preference("vendor"):
        output, rsigma = manager.call("rmsnorm_fwd", input, weight)
    print(f"output {tuple(output.shape)}, rsigma {tuple(rsigma.shape)}")


if __name__ == "__main__":
    main()
