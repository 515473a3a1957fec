"""LayerNorm, RMSNorm and RMSNorm with a fused residual addition, in Triton.

The formulas are those of ``tefl.kernels.reference.norm``. Arithmetic and statistics are float32. A tile has
all columns of its rows in registers where they fit; else the kernels named ``loop`` read a row again for each
pass. The gradients of weight and bias leave the backward as one partial row a program and are added up in a
fixed order: the same bits every time.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from tefl.kernels import _norm
from tefl.kernels._buffer import dense
from tefl.kernels._rows import rows_of
from tefl.kernels.launcher import TritonKernel
from tefl.kernels.recipe import Launch, Recipe, by_recipe, launch
from tefl.kernels.triton import _utils
from tefl.kernels.triton.language import (
    column_sums,
    load_tile,
    narrow,
    normalised_tile,
    row_block,
    row_means,
    store_dinput,
    store_normalised,
    store_tile,
    summed_tile,
    widen,
)

__all__ = [
    "add_rmsnorm_bwd",
    "add_rmsnorm_fwd",
    "layernorm_bwd",
    "layernorm_fwd",
    "rmsnorm_bwd",
    "rmsnorm_bwd_add",
    "rmsnorm_fwd",
]


@triton.jit(do_not_specialize=["rows"])
def _forward(
    input, residual, weight, bias, out, residual_out, mean, rstd,
    rows, columns, input_stride, residual_stride, eps,
    OFFSET: tl.constexpr, LAYER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, row_exists = row_block(tl.program_id(0).to(tl.int64), rows, ROWS)
    col = tl.arange(0, COLUMNS)
    exists = row_exists[:, None] & (col < columns)[None, :]
    x = summed_tile(input, residual, residual_out, row, input_stride, residual_stride, col, exists)
    if residual is not None:
        store_tile(residual_out, x, row, columns, col, exists)
    if LAYER:
        m = row_means(x, columns)
        x = tl.where(exists, x - m[:, None], 0.0)
        tl.store(mean + row, m, mask=row_exists)
    r = tl.rsqrt(row_means(x * x, columns) + eps)
    tl.store(rstd + row, r, mask=row_exists)
    store_normalised(out, x * r[:, None], weight, bias, row, columns, col, exists, OFFSET)


@triton.jit(do_not_specialize=["rows"])
def _forward_loop(
    input, residual, weight, bias, out, residual_out, mean, rstd,
    rows, columns, input_stride, residual_stride, eps,
    OFFSET: tl.constexpr, LAYER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, row_exists = row_block(tl.program_id(0).to(tl.int64), rows, ROWS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, columns, COLUMNS):
        col = start + tl.arange(0, COLUMNS)
        exists = row_exists[:, None] & (col < columns)[None, :]
        x = summed_tile(input, residual, residual_out, row, input_stride, residual_stride, col, exists)
        if residual is not None:
            store_tile(residual_out, x, row, columns, col, exists)
        total += x if LAYER else x * x
    m = tl.zeros([ROWS], tl.float32)
    if LAYER:
        m = row_means(total, columns)
        tl.store(mean + row, m, mask=row_exists)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, columns, COLUMNS):
            col = start + tl.arange(0, COLUMNS)
            exists = row_exists[:, None] & (col < columns)[None, :]
            x = tl.where(exists, load_tile(input, row, input_stride, col, exists) - m[:, None], 0.0)
            total += x * x
    r = tl.rsqrt(row_means(total, columns) + eps)
    tl.store(rstd + row, r, mask=row_exists)
    for start in range(0, columns, COLUMNS):
        col = start + tl.arange(0, COLUMNS)
        exists = row_exists[:, None] & (col < columns)[None, :]
        # Summed again rather than read back: another thread of this program may have stored that sum.
        x = summed_tile(input, residual, residual_out, row, input_stride, residual_stride, col, exists)
        h = (x - m[:, None]) * r[:, None]
        store_normalised(out, h, weight, bias, row, columns, col, exists, OFFSET)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    grad, input, add, mean, rstd, weight, dinput, dweight, dbias,
    rows, columns, grad_stride, input_stride, add_stride,
    OFFSET: tl.constexpr, LAYER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, COLUMNS)
    w = widen(tl.load(weight + col, mask=col < columns, other=0.0)) + OFFSET
    dw = tl.zeros([ROWS, COLUMNS], tl.float32)
    db = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row, row_exists = row_block(block, rows, ROWS)
        exists = row_exists[:, None] & (col < columns)[None, :]
        dy = load_tile(grad, row, grad_stride, col, exists)
        h, r = normalised_tile(input, mean, rstd, row, row_exists, input_stride, col, exists, LAYER)
        g = dy * w[None, :]
        dx = g - h * row_means(g * h, columns)[:, None]
        if LAYER:
            dx -= row_means(g, columns)[:, None]
        store_dinput(dinput, dx * r[:, None], add, add_stride, row, columns, col, exists)
        dw += dy * h
        if dbias is not None:
            db += dy
    partial = tl.program_id(0).to(tl.int64) * columns + col
    tl.store(dweight + partial, column_sums(dw), mask=col < columns)
    if dbias is not None:
        tl.store(dbias + partial, column_sums(db), mask=col < columns)


@triton.jit(do_not_specialize=["rows"])
def _backward_loop(
    grad, input, add, mean, rstd, weight, dinput,
    rows, columns, grad_stride, input_stride, add_stride,
    OFFSET: tl.constexpr, LAYER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dinput alone."""
    row, row_exists = row_block(tl.program_id(0).to(tl.int64), rows, ROWS)
    sum_gh = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_g = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, columns, COLUMNS):
        col = start + tl.arange(0, COLUMNS)
        exists = row_exists[:, None] & (col < columns)[None, :]
        w = widen(tl.load(weight + col, mask=col < columns, other=0.0)) + OFFSET
        g = load_tile(grad, row, grad_stride, col, exists) * w[None, :]
        h, r = normalised_tile(input, mean, rstd, row, row_exists, input_stride, col, exists, LAYER)
        sum_gh += g * h
        if LAYER:
            sum_g += g
    mean_gh = row_means(sum_gh, columns)
    mean_g = row_means(sum_g, columns)
    for start in range(0, columns, COLUMNS):
        col = start + tl.arange(0, COLUMNS)
        exists = row_exists[:, None] & (col < columns)[None, :]
        w = widen(tl.load(weight + col, mask=col < columns, other=0.0)) + OFFSET
        g = load_tile(grad, row, grad_stride, col, exists) * w[None, :]
        h, r = normalised_tile(input, mean, rstd, row, row_exists, input_stride, col, exists, LAYER)
        dx = (g - h * mean_gh[:, None] - mean_g[:, None]) * r[:, None]
        store_dinput(dinput, dx, add, add_stride, row, columns, col, exists)


@triton.jit(do_not_specialize=["rows"])
def _weight_gradients(
    grad, input, mean, rstd, dweight, dbias, rows, columns, grad_stride, input_stride,
    LAYER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Partial rows of dweight and dbias: program (x, y) does columns x and every gridDim.y-th row block."""
    col = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    dw = tl.zeros([ROWS, COLUMNS], tl.float32)
    db = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(tl.program_id(1), tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row, row_exists = row_block(block, rows, ROWS)
        exists = row_exists[:, None] & (col < columns)[None, :]
        dy = load_tile(grad, row, grad_stride, col, exists)
        h, _ = normalised_tile(input, mean, rstd, row, row_exists, input_stride, col, exists, LAYER)
        dw += dy * h
        if dbias is not None:
            db += dy
    partial = tl.program_id(1).to(tl.int64) * columns + col
    tl.store(dweight + partial, column_sums(dw), mask=col < columns)
    if dbias is not None:
        tl.store(dbias + partial, column_sums(db), mask=col < columns)


@triton.jit(do_not_specialize=["partials"])
def _reduce(
    dweight_partial, dweight, dbias_partial, dbias, partials, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Column sums of the partial rows; program (x, 1) does dbias."""
    col = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if tl.program_id(1) == 0:
        _reduce_columns(dweight_partial, dweight, partials, columns, col, ROWS, COLUMNS)
    elif dbias is not None:
        _reduce_columns(dbias_partial, dbias, partials, columns, col, ROWS, COLUMNS)


@triton.jit
def _reduce_columns(partial, out, partials, columns, col, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, partials, ROWS):
        row = start + tl.arange(0, ROWS).to(tl.int64)
        exists = (row < partials)[:, None] & (col < columns)[None, :]
        total += load_tile(partial, row, columns, col, exists)
    tl.store(out + col, narrow(column_sums(total), out), mask=col < columns)


_FORWARD, _FORWARD_LOOP = TritonKernel(_forward), TritonKernel(_forward_loop)
_BACKWARD, _BACKWARD_LOOP = TritonKernel(_backward), TritonKernel(_backward_loop)
_WEIGHT_GRADIENTS, _REDUCE = TritonKernel(_weight_gradients), TritonKernel(_reduce)


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


def _rms_backward(grad, input, add, rsigma, weight, zero_centered) -> Recipe:
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
    columns = input.shape[-1]
    if (rows := input.numel() // columns) == 0:
        return []
    x, x_stride = rows_of(input)
    r, r_stride = (None, 0) if residual is None else rows_of(residual)
    tile = _utils.norm_forward_tile(columns)
    return [
        launch(
            _FORWARD_LOOP if tile.loops else _FORWARD, (_utils.ceil_div(rows, tile.rows),),
            x, r, dense(weight), None if bias is None else dense(bias),
            made.out, made.residual_out, made.mean, made.rstd,
            rows, columns, x_stride, r_stride, float(eps),
            OFFSET=float(zero_centered), LAYER=made.mean is not None, ROWS=tile.rows, COLUMNS=tile.columns,
            num_warps=tile.num_warps,
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
    columns = input.shape[-1]
    if (rows := input.numel() // columns) == 0:
        return []
    dy, dy_stride = rows_of(grad)
    x, x_stride = rows_of(input)
    a, a_stride = (None, 0) if add is None else rows_of(add)
    m, r, w = None if mean is None else dense(mean), dense(rstd), dense(weight)
    tile = _utils.norm_backward_tile(columns)
    partials = _utils.norm_programs(rows, tile, _utils.multiprocessors(input.device))
    dweight = _norm.partial_rows(partials, weight)
    dbias = None if made.dbias is None else _norm.partial_rows(partials, weight)
    shape = {"LAYER": mean is not None, "ROWS": tile.rows, "COLUMNS": tile.columns}
    shape["num_warps"] = tile.num_warps
    offset = float(zero_centered)
    if tile.loops:
        launches = [
            launch(
                _BACKWARD_LOOP, (_utils.ceil_div(rows, tile.rows),), dy, x, a, m, r, w, made.dinput,
                rows, columns, dy_stride, x_stride, a_stride, OFFSET=offset, **shape,
            ),
            launch(
                _WEIGHT_GRADIENTS, (_utils.ceil_div(columns, tile.columns), partials),
                dy, x, m, r, dweight, dbias, rows, columns, dy_stride, x_stride, **shape,
            ),
        ]  # fmt: skip
    else:
        launches = [
            launch(
                _BACKWARD, (partials,), dy, x, a, m, r, w, made.dinput, dweight, dbias,
                rows, columns, dy_stride, x_stride, a_stride, OFFSET=offset, **shape,
            )
        ]  # fmt: skip
    width = _utils.norm_reduce_columns(columns)
    total = launch(
        _REDUCE, (_utils.ceil_div(columns, width), 1 if dbias is None else 2),
        dweight, made.dweight, dbias, made.dbias, partials, columns, ROWS=64, COLUMNS=width, num_warps=4,
    )  # fmt: skip
    return [*launches, total]
