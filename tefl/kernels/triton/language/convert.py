"""From the dtype of a tensor to float32, which all arithmetic is in, and back."""
# mypy: allow-untyped-defs, allow-untyped-decorators, allow-incomplete-defs

import triton
import triton.language as tl

__all__ = ["narrow", "rounded", "widen"]


@triton.jit
def widen(values):
    """Values of any floating-point dtype as float32: exact."""
    return values.to(tl.float32)


@triton.jit
def narrow(values, out):
    """Values in the dtype of the tensor that ``out`` points to, rounded."""
    return values.to(out.dtype.element_ty)


@triton.jit
def rounded(values, out):
    """Float32 values as they read once the tensor that ``out`` points to has stored them."""
    return widen(narrow(values, out))
