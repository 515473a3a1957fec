"""The implementations that maca brings to tefl (entry point `te_fl.plugin`).

Here it is one, of `rmsnorm_fwd`. A vendor with more of them has more of the same: a function with the op's
signature, and an OpImpl that says where and when it fits. tefl asks, chooses, and calls.
"""

from __future__ import annotations

import os

import torch

from maca_provider import library
from tefl import BackendImplKind, OpImpl
from tefl.privateuse1 import raw_stream

# For trying out what happens when an implementation breaks: set MACA_FAIL=1 and run anything with an rmsnorm.
_FAIL = os.environ.get("MACA_FAIL") == "1"


def is_available(facts) -> str | None:
    """Say whether the kernel can run here at all. None: yes; a string: no, and why.

    The answer may depend on the facts alone, as tefl remembers it while they stay the same. What counts is
    who provides the device, not what it is called: only our own library's streams take our kernels.
    """
    if facts.provider != "maca":
        return f"runs on the devices of provider 'maca'; the active provider is {facts.provider!r}"
    return None


def supports(input, weight, eps, *, zero_centered_gamma, out_dtype) -> str | None:
    """Say whether the kernel takes this very call; asked each time, so it looks at as little as it can."""
    if out_dtype is not None and out_dtype not in library.TYPES:
        return f"writes float32, bfloat16 or float16, not {out_dtype}"
    return None


def rmsnorm_fwd(input, weight, eps, *, zero_centered_gamma, out_dtype):
    """Compute tefl::rmsnorm_fwd by the kernel in src/rmsnorm.cpp; returns (out, rsigma).

    Enqueues and returns. `input` may be gone on the Python side before the kernel runs: its memory is given
    back, or used again on this same stream, only after what is enqueued now.
    """
    if _FAIL:
        raise library.MacaError("MACA_FAIL=1 tells this implementation to fail")
    input, weight = input.contiguous(), weight.contiguous()
    out = torch.empty_like(input, dtype=out_dtype)
    rsigma = torch.empty(input.shape[:-1], dtype=torch.float32, device=input.device)
    stream = raw_stream(input.device.index)
    library.rmsnorm_fwd(out, rsigma, input, weight, eps, zero_centered_gamma, stream)
    return out, rsigma


def register(registry) -> None:
    """Add our implementations to tefl's registry. Called once, when an op is first used."""
    registry.register_impl(
        OpImpl(
            op_name="rmsnorm_fwd",
            impl_id="vendor.maca",
            kind=BackendImplKind.VENDOR,
            vendor="maca",
            fn=rmsnorm_fwd,
            priority=200,  # before tefl's own vendor implementations
            supported_dtypes=set(library.TYPES),
            devices=("privateuse1",),  # whatever the device is called
            is_available=is_available,
            supports=supports,
        )
    )
