"""LayerNorm, RMSNorm and RMSNorm with a fused residual addition through the CUDA C++ kernels of csrc/kernels.

The formulas are those of ``tefl.kernels.reference.norm``. Arithmetic and statistics are float32, gradients
of weight and bias are added up in a fixed order. Input, grad, residual and out have one dtype; weight any of
float16, bfloat16, float32.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tefl.kernels import _norm
from tefl.kernels._buffer import Buffer, Operand, dense
from tefl.kernels._rows import rows_of
from tefl.kernels.cuda._plan import backward_blocks, backward_plan, forward_plan
from tefl.kernels.launcher import BinaryKernel
from tefl.kernels.recipe import Launch, Recipe, by_recipe, launch

__all__ = [
    "add_rmsnorm_bwd",
    "add_rmsnorm_fwd",
    "layernorm_bwd",
    "layernorm_fwd",
    "rmsnorm_bwd",
    "rmsnorm_bwd_add",
    "rmsnorm_fwd",
]

_FATBINS = Path(__file__).with_name("fatbin")
_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
# The parameters of the kernels, by name in csrc/kernels/*.cu.
_SIGNATURES = {
    "rmsnorm_fwd": "pppplllff",
    "add_rmsnorm_fwd": "ppppppllllff",
    "layernorm_fwd": "pppppplllff",
    "rmsnorm_bwd": "ppppppplllllf",
    "layernorm_bwd": "ppppppppllllf",
}


@by_recipe
def layernorm_fwd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Recipe:
    """Returns (out, mu, rsigma); see the reference."""
    made = _norm.empty_normalised(input, out_dtype, layer=True)
    launches = _forward_launches(made, input, None, weight, bias, eps, zero_centered_gamma)
    assert made.mean is not None
    return Recipe(input.device, launches, (made.out, made.mean, made.rstd))


@by_recipe
def layernorm_bwd(
    grad: Tensor,
    input: Tensor,
    mu: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
    bias_grad: bool = True,
) -> Recipe:
    """Returns (dinput, dweight, dbias); see the reference."""
    made = _norm.empty_gradients(input, weight, bias=bias_grad)
    launches = _backward_launches(made, grad, input, None, mu, rsigma, weight, zero_centered_gamma)
    return Recipe(input.device, launches, (made.dinput, made.dweight, made.dbias or _norm.absent(weight)))


@by_recipe
def rmsnorm_fwd(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Recipe:
    """Returns (out, rsigma); see the reference."""
    made = _norm.empty_normalised(input, out_dtype)
    launches = _forward_launches(made, input, None, weight, None, eps, zero_centered_gamma)
    return Recipe(input.device, launches, (made.out, made.rstd))


@by_recipe
def rmsnorm_bwd(
    grad: Tensor, input: Tensor, rsigma: Tensor, weight: Tensor, *, zero_centered_gamma: bool = False
) -> Recipe:
    """Returns (dinput, dweight); see the reference."""
    return _rms_backward(grad, input, None, rsigma, weight, zero_centered_gamma)


@by_recipe
def rmsnorm_bwd_add(
    grad: Tensor,
    input: Tensor,
    add: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> Recipe:
    """Returns (dinput, dweight), dinput with ``add`` added before it is rounded; see the reference."""
    return _rms_backward(grad, input, add, rsigma, weight, zero_centered_gamma)


@by_recipe
def add_rmsnorm_fwd(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Recipe:
    """Returns (out, residual_out, rsigma); see the reference."""
    made = _norm.empty_normalised(input, out_dtype, add=True)
    launches = _forward_launches(made, input, residual, weight, None, eps, zero_centered_gamma)
    assert made.residual_out is not None
    return Recipe(input.device, launches, (made.out, made.residual_out, made.rstd))


@by_recipe
def add_rmsnorm_bwd(
    grad: Tensor,
    grad_residual_out: Tensor | None,
    residual_out: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> Recipe:
    """Returns (dinput, dweight); see the reference."""
    return _rms_backward(grad, residual_out, grad_residual_out, rsigma, weight, zero_centered_gamma)


def _rms_backward(
    grad: Tensor, input: Tensor, add: Tensor | None, rsigma: Tensor, weight: Tensor, zero_centered: bool
) -> Recipe:
    made = _norm.empty_gradients(input, weight)
    launches = _backward_launches(made, grad, input, add, None, rsigma, weight, zero_centered)
    return Recipe(input.device, launches, (made.dinput, made.dweight))


def _forward_launches(
    made: _norm.Normalised,
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    zero_centered: bool,
) -> list[Launch]:
    if not input.numel():
        return []
    x, x_stride = rows_of(input)
    r, r_stride = (None, 0) if residual is None else rows_of(residual)
    w = _compiled_weight(weight, input.dtype)
    b = None if bias is None else _compiled_weight(bias, input.dtype)
    rows, columns = _shape(input)
    aligned = _aligned((x, x_stride), (r, r_stride), (w, columns), (b, columns))
    plan = forward_plan(columns, x.dtype.itemsize, aligned)
    operands: tuple[Operand | None, ...]
    strides: tuple[int, ...]
    if made.mean is not None:
        op, operands, strides = "layernorm_fwd", (x, w, b, made.out, made.mean, made.rstd), (x_stride,)
    elif residual is None:
        op, operands, strides = "rmsnorm_fwd", (x, w, made.out, made.rstd), (x_stride,)
    else:
        op, strides = "add_rmsnorm_fwd", (x_stride, r_stride)
        operands = (x, r, w, made.out, made.residual_out, made.rstd)
    return [
        launch(
            _kernel(op, input.dtype, w.dtype, plan.layout), (plan.blocks(rows),), plan.block,
            *operands, rows, columns, *strides, eps, float(zero_centered),
        )
    ]  # fmt: skip


def _backward_launches(
    made: _norm.Gradients,
    grad: Tensor,
    input: Tensor,
    add: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor,
    zero_centered: bool,
) -> list[Launch]:
    if not input.numel():
        return []
    dy, dy_stride = rows_of(grad)
    x, x_stride = rows_of(input)
    a, a_stride = (None, 0) if add is None else rows_of(add)
    r, w = dense(rstd), _compiled_weight(weight, input.dtype)
    rows, columns = _shape(input)
    aligned = _aligned((dy, dy_stride), (x, x_stride), (a, a_stride), (w, columns))
    plan = backward_plan(columns, x.dtype.itemsize, aligned, mean is not None)
    blocks = backward_blocks(plan, rows, _multiprocessors(input.device.index))
    dweight = _norm.partial_rows(blocks, weight)
    dbias = None if made.dbias is None else _norm.partial_rows(blocks, weight)
    operands: tuple[Operand | None, ...]
    strides: tuple[int, ...]
    if mean is not None:
        op, strides = "layernorm_bwd", (dy_stride, x_stride)
        operands = (dy, x, dense(mean), r, w, made.dinput, dweight, dbias)
    else:
        op, strides = "rmsnorm_bwd", (dy_stride, x_stride, a_stride)
        operands = (dy, x, a, r, w, made.dinput, dweight)
    partial = launch(
        _kernel(op, input.dtype, w.dtype, plan.layout), (blocks,), plan.block,
        *operands, rows, columns, *strides, float(zero_centered), shared_bytes=plan.shared_bytes,
    )  # fmt: skip
    return [partial, _reduce(made, dweight, dbias)]


def _reduce(made: _norm.Gradients, dweight: Buffer, dbias: Buffer | None) -> Launch:
    """Add up the partial rows."""
    count, columns = dweight.shape
    return launch(
        _reduce_kernel(made.dweight.dtype), (-(-columns // 32), 1 if dbias is None else 2), (32, 32),
        dweight, made.dweight, dbias, made.dbias, count, columns,
    )  # fmt: skip


def _shape(input: Tensor) -> tuple[int, int]:
    columns = input.shape[-1]
    return input.numel() // columns, columns


def _compiled_weight(weight: Tensor, dtype: torch.dtype) -> Operand:
    """The weight, dense, in a dtype that kernels for input of ``dtype`` are compiled for: that or float32."""
    return dense(weight, weight.dtype if weight.dtype in (dtype, torch.float32) else torch.float32)


def _aligned(*rows: tuple[Operand | None, int]) -> bool:
    """Whether every row of each tensor, given with its row stride, can be read in 16-byte vectors.

    A vector has as many elements as the first tensor's dtype lets it: that many are read of each tensor.
    """
    first = rows[0][0]
    assert first is not None
    width = 16 // first.dtype.itemsize
    return first.shape[-1] % width == 0 and all(
        tensor is None or (stride % width == 0 and _is_aligned(tensor)) for tensor, stride in rows
    )


def _is_aligned(tensor: Operand) -> bool:
    return isinstance(tensor, Buffer) or tensor.data_ptr() % 16 == 0


@cache
def _kernel(op: str, input: torch.dtype, weight: torch.dtype, layout: str) -> BinaryKernel:
    file = "layernorm" if op.startswith("layernorm") else "rmsnorm"
    name = f"tefl_{op}_{_TYPES[input]}_{_TYPES[weight]}_{layout}"
    return BinaryKernel(_FATBINS / f"{file}.fatbin", name, _SIGNATURES[op])


@cache
def _reduce_kernel(weight: torch.dtype) -> BinaryKernel:
    return BinaryKernel(_FATBINS / "norm_reduce.fatbin", f"tefl_norm_reduce_{_TYPES[weight]}", "ppppll")


@cache
def _multiprocessors(index: int) -> int:
    """Of a CUDA device, or of the one that a claimed device of that index is an alias of."""
    return torch.cuda.get_device_properties(index).multi_processor_count
