# trunk sha256: 79e56bb37a7364b0
"""Conversions for ACME's cores, which have no instruction from bfloat16 to float32.

A bfloat16 is the upper half of a float32, so that its bits in the right place are the number: exact, as
trunk's conversion is.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators, allow-incomplete-defs

import triton
import triton.language as tl

__all__ = ["narrow", "rounded", "widen", "widen_bits"]


@triton.jit
def widen_bits(bits):
    """The float32 numbers whose upper halves are these 16 bits."""
    return (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def widen(values):
    """Values of any floating-point dtype as float32: exact."""
    if values.dtype == tl.bfloat16:
        return widen_bits(values.to(tl.uint16, bitcast=True))
    else:
        return values.to(tl.float32)


@triton.jit
def narrow(values, out):
    """Values in the dtype of the tensor that ``out`` points to, rounded."""
    return values.to(out.dtype.element_ty)


@triton.jit
def rounded(values, out):
    """Float32 values as they read once the tensor that ``out`` points to has stored them."""
    return widen(narrow(values, out))
