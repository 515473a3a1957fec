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
from tefl.kernels._rows import rows_of
from tefl.kernels.cuda._plan import backward_blocks, backward_plan, forward_plan
from tefl.kernels.launcher import BinaryKernel

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


def layernorm_fwd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (out, mu, rsigma); see the reference."""
    result = _norm.empty_normalised(input, out_dtype, layer=True)
    assert result.mean is not None
    if result.out.numel():
        x, x_stride = rows_of(input)
        w = _compiled_weight(weight, input.dtype)
        b = None if bias is None else _compiled_weight(bias, input.dtype)
        rows, columns = _shape(input)
        plan = forward_plan(columns, x.element_size(), _aligned((x, x_stride), (w, columns), (b, columns)))
        kernel = _kernel("layernorm", "layernorm_fwd", input.dtype, w.dtype, plan.layout)
        kernel(
            (plan.blocks(rows),), plan.block, x, w, b, result.out, result.mean, result.rstd,
            rows, columns, x_stride, eps, float(zero_centered_gamma),
        )  # fmt: skip
    return result.out, result.mean, result.rstd


def layernorm_bwd(
    grad: Tensor,
    input: Tensor,
    mu: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
    bias_grad: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (dinput, dweight, dbias); see the reference."""
    result = _norm.empty_gradients(input, weight, bias=bias_grad)
    if input.numel():
        dy, dy_stride = rows_of(grad)
        x, x_stride = rows_of(input)
        w = _compiled_weight(weight, input.dtype)
        rows, columns = _shape(input)
        aligned = _aligned((dy, dy_stride), (x, x_stride), (w, columns))
        plan = backward_plan(columns, x.element_size(), aligned, True)
        blocks = backward_blocks(plan, rows, _multiprocessors(input.device.index))
        dweight = _norm.partial_rows(blocks, weight)
        dbias = _norm.partial_rows(blocks, weight) if bias_grad else None
        kernel = _kernel("layernorm", "layernorm_bwd", input.dtype, w.dtype, plan.layout)
        kernel(
            (blocks,), plan.block, dy, x, mu.contiguous(), rsigma.contiguous(), w,
            result.dinput, dweight, dbias, rows, columns, dy_stride, x_stride, float(zero_centered_gamma),
            shared_bytes=plan.shared_bytes,
        )  # fmt: skip
        _reduce(result, dweight, dbias)
    return result.dinput, result.dweight, weight.new_empty(0) if result.dbias is None else result.dbias


def rmsnorm_fwd(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns (out, rsigma); see the reference."""
    result = _norm.empty_normalised(input, out_dtype)
    if result.out.numel():
        x, x_stride = rows_of(input)
        w = _compiled_weight(weight, input.dtype)
        rows, columns = _shape(input)
        plan = forward_plan(columns, x.element_size(), _aligned((x, x_stride), (w, columns)))
        kernel = _kernel("rmsnorm", "rmsnorm_fwd", input.dtype, w.dtype, plan.layout)
        kernel(
            (plan.blocks(rows),), plan.block, x, w, result.out, result.rstd,
            rows, columns, x_stride, eps, float(zero_centered_gamma),
        )  # fmt: skip
    return result.out, result.rstd


def rmsnorm_bwd(
    grad: Tensor, input: Tensor, rsigma: Tensor, weight: Tensor, *, zero_centered_gamma: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns (dinput, dweight); see the reference."""
    return add_rmsnorm_bwd(grad, None, input, rsigma, weight, zero_centered_gamma=zero_centered_gamma)


def rmsnorm_bwd_add(
    grad: Tensor,
    input: Tensor,
    add: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns (dinput, dweight), dinput with ``add`` added before it is rounded; see the reference."""
    return add_rmsnorm_bwd(grad, add, input, rsigma, weight, zero_centered_gamma=zero_centered_gamma)


def add_rmsnorm_fwd(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (out, residual_out, rsigma); see the reference."""
    result = _norm.empty_normalised(input, out_dtype, add=True)
    assert result.residual_out is not None
    if result.out.numel():
        x, x_stride = rows_of(input)
        r, r_stride = rows_of(residual)
        w = _compiled_weight(weight, input.dtype)
        rows, columns = _shape(input)
        plan = forward_plan(columns, x.element_size(), _aligned((x, x_stride), (r, r_stride), (w, columns)))
        kernel = _kernel("rmsnorm", "add_rmsnorm_fwd", input.dtype, w.dtype, plan.layout)
        kernel(
            (plan.blocks(rows),), plan.block, x, r, w, result.out, result.residual_out, result.rstd,
            rows, columns, x_stride, r_stride, eps, float(zero_centered_gamma),
        )  # fmt: skip
    return result.out, result.residual_out, result.rstd


def add_rmsnorm_bwd(
    grad: Tensor,
    grad_residual_out: Tensor | None,
    residual_out: Tensor,
    rsigma: Tensor,
    weight: Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns (dinput, dweight); see the reference."""
    result = _norm.empty_gradients(residual_out, weight)
    if residual_out.numel():
        dy, dy_stride = rows_of(grad)
        x, x_stride = rows_of(residual_out)
        add, add_stride = (None, 0) if grad_residual_out is None else rows_of(grad_residual_out)
        w = _compiled_weight(weight, x.dtype)
        rows, columns = _shape(residual_out)
        aligned = _aligned((dy, dy_stride), (x, x_stride), (add, add_stride), (w, columns))
        plan = backward_plan(columns, x.element_size(), aligned, False)
        blocks = backward_blocks(plan, rows, _multiprocessors(x.device.index))
        dweight = _norm.partial_rows(blocks, weight)
        kernel = _kernel("rmsnorm", "rmsnorm_bwd", x.dtype, w.dtype, plan.layout)
        kernel(
            (blocks,), plan.block, dy, x, add, rsigma.contiguous(), w, result.dinput, dweight,
            rows, columns, dy_stride, x_stride, add_stride, float(zero_centered_gamma),
            shared_bytes=plan.shared_bytes,
        )  # fmt: skip
        _reduce(result, dweight, None)
    return result.dinput, result.dweight


def _reduce(result: _norm.Gradients, dweight: Tensor, dbias: Tensor | None) -> None:
    """Add up the partial rows."""
    count, columns = dweight.shape
    _reduce_kernel(result.dweight.dtype)(
        (-(-columns // 32), 1 if dbias is None else 2), (32, 32),
        dweight, result.dweight, dbias, result.dbias, count, columns,
    )  # fmt: skip


def _shape(input: Tensor) -> tuple[int, int]:
    columns = input.shape[-1]
    return input.numel() // columns, columns


def _compiled_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight, dense, in a dtype that kernels for input of ``dtype`` are compiled for: that or float32."""
    return (weight if weight.dtype in (dtype, torch.float32) else weight.float()).contiguous()


def _aligned(*rows: tuple[Tensor | None, int]) -> bool:
    """Whether every row of each tensor, given with its row stride, can be read in 16-byte vectors.

    A vector has as many elements as the first tensor's dtype lets it: that many are read of each tensor.
    """
    first = rows[0][0]
    assert first is not None
    width = 16 // first.element_size()
    return first.shape[-1] % width == 0 and all(
        tensor is None or (stride % width == 0 and tensor.data_ptr() % 16 == 0) for tensor, stride in rows
    )


@cache
def _kernel(file: str, op: str, input: torch.dtype, weight: torch.dtype, layout: str) -> BinaryKernel:
    name = f"tefl_{op}_{_TYPES[input]}_{_TYPES[weight]}_{layout}"
    return BinaryKernel(_FATBINS / f"{file}.fatbin", name, _SIGNATURES[op])


@cache
def _reduce_kernel(weight: torch.dtype) -> BinaryKernel:
    return BinaryKernel(_FATBINS / "norm_reduce.fatbin", f"tefl_norm_reduce_{_TYPES[weight]}", "ppppll")


@cache
def _multiprocessors(index: int) -> int:
    """Of a CUDA device, or of the one that a claimed device of that index is an alias of."""
    return torch.cuda.get_device_properties(index).multi_processor_count
