"""The ops under torch.compile and torch.export."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

import tefl

from .samples.sample import random

ops = torch.ops.tefl

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def rms(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return ops.rmsnorm_fwd(x.sin(), weight)[0].cos() + bias


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return ops.layernorm_fwd(x.sin(), weight, bias)[0].cos()


def add_rms(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out, residual_out, _ = ops.add_rmsnorm_fwd(x.sin(), x.cos(), weight)
    return out * residual_out + bias


def torch_rms(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.rms_norm(x.sin(), x.shape[-1:], weight, 1e-5).cos() + bias


def torch_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x.sin(), x.shape[-1:], weight, bias).cos()


def torch_add_rms(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    summed = x.sin() + x.cos()
    return functional.rms_norm(summed, x.shape[-1:], weight, 1e-5) * summed + bias


pairs = pytest.mark.parametrize(
    ("ours", "theirs"),
    [(rms, torch_rms), (layer, torch_layer), (add_rms, torch_add_rms)],
    ids=["rmsnorm", "layernorm", "add_rmsnorm"],
)


def leaves(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, bias = (
        random(*s, dtype=torch.float64, seed=i).requires_grad_()
        for i, s in enumerate((shape, shape[-1:], shape[-1:]))
    )
    return x, weight, bias


def agree(ours: Function, theirs: Function, tensors: tuple[Tensor, ...]) -> None:
    """Values and gradients."""
    got, expected = ours(*tensors), theirs(*tensors)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        torch.autograd.grad(got.square().sum(), tensors),
        torch.autograd.grad(expected.square().sum(), tensors),
    )


@pairs
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_forward_and_backward_compile_to_one_graph(ours: Function, theirs: Function, backend: str) -> None:
    counter = CompileCounterWithBackend(backend)
    agree(torch.compile(ours, fullgraph=True, backend=counter), theirs, leaves(4, 8))
    assert counter.frame_count == 1


@pairs
def test_the_compiled_program_calls_the_ops(ours: Function, theirs: Function) -> None:
    function = torch.compile(ours, fullgraph=True)
    tensors = leaves(4, 8)
    function(*tensors).sum().backward()
    with tefl.record() as calls:
        function(*tensors).sum().backward()
    called = sorted(op for op, *_ in calls)
    assert len(called) == 2
    assert called[0].replace("_bwd", "_fwd") == called[1]


@pairs
def test_sizes_may_change_without_compiling_again(ours: Function, theirs: Function) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(ours, fullgraph=True, dynamic=True, backend=counter)
    for shape in ((4, 8), (5, 9), (17, 33)):
        agree(function, theirs, leaves(*shape))
    assert counter.frame_count == 1


@pairs
def test_no_gradients_compile_too(ours: Function, theirs: Function) -> None:
    tensors = leaves(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(ours, fullgraph=True)(*tensors), theirs(*tensors))


def test_options_compile() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return ops.rmsnorm_fwd(x, weight, 1e-3, zero_centered_gamma=True, out_dtype=torch.float32)[0]

    x, weight = random(4, 8, dtype=torch.bfloat16).requires_grad_(), random(8).requires_grad_()
    got = torch.compile(function, fullgraph=True)(x, weight)
    assert got.dtype is torch.float32
    assert torch.equal(got, function(x, weight))
    grads = torch.autograd.grad(got.sum(), (x, weight))
    assert [grad.dtype for grad in grads] == [torch.bfloat16, torch.float32]
    assert all(map(torch.equal, grads, torch.autograd.grad(function(x, weight).sum(), (x, weight))))


def test_eps_may_change() -> None:
    function = torch.compile(
        lambda x, weight, eps: ops.rmsnorm_fwd(x, weight, eps)[0], fullgraph=True, dynamic=True
    )
    x, weight = random(4, 8), random(8)
    for eps in (1e-5, 1e-2, 0.5):
        assert torch.equal(function(x, weight, eps), ops.rmsnorm_fwd(x, weight, eps)[0])


def test_a_channels_last_input_gives_a_contiguous_result() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return ops.rmsnorm_fwd(x * 2, weight)[0]

    x, weight = random(2, 3, 4, 5).to(memory_format=torch.channels_last), random(5)
    got = torch.compile(function, fullgraph=True)(x, weight)
    assert got.is_contiguous()
    torch.testing.assert_close(got, function(x, weight))


def test_a_bad_call_is_an_error_that_names_the_argument() -> None:
    function = torch.compile(lambda x, weight: ops.rmsnorm_fwd(x, weight)[0], fullgraph=True)
    with pytest.raises(Exception, match=r"tefl::rmsnorm_fwd: weight has shape \(9,\); wanted \(8,\)"):
        function(random(4, 8), random(9))


def test_a_second_derivative_of_a_compiled_function_is_an_error() -> None:
    x, weight, bias = leaves(4, 8)
    out = torch.compile(rms, fullgraph=True, backend="aot_eager")(x, weight, bias)
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()


@pairs
def test_a_compiled_function_can_be_differentiated_per_sample(ours: Function, theirs: Function) -> None:
    def gradients(function: Function) -> Callable[..., tuple[Tensor, ...]]:
        return torch.func.grad(lambda *tensors: function(*tensors).sin().sum(), argnums=(0, 1, 2))

    tensors = tuple(tensor.detach() for tensor in leaves(4, 8))
    got = torch.compile(gradients(ours), backend="aot_eager")(*tensors)
    torch.testing.assert_close(got, gradients(theirs)(*tensors))


# --- compiled autograd ---

NORMS: dict[str, Callable[..., Tensor]] = {
    "rmsnorm": lambda x, weight, bias: ops.rmsnorm_fwd(x, weight)[0],
    "rmsnorm gamma+1": lambda x, weight, bias: ops.rmsnorm_fwd(x, weight, zero_centered_gamma=True)[0],
    "layernorm": lambda x, weight, bias: ops.layernorm_fwd(x, weight, bias)[0],
    "layernorm no bias gradient": lambda x, weight, bias: ops.layernorm_fwd(x, weight, bias.detach())[0],
    "layernorm no bias": lambda x, weight, bias: ops.layernorm_fwd(x, weight)[0],
    "add_rmsnorm": lambda x, weight, bias: ops.add_rmsnorm_fwd(x, x.cos(), weight)[0],
    "add_rmsnorm residual": lambda x, weight, bias: ops.add_rmsnorm_fwd(x, x.cos(), weight)[1],
}


def gradients(function: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> list[Tensor | None]:
    copies = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    function(*copies).square().sum().backward()
    return [copy.grad for copy in copies]


def test_compiled_autograd_gives_the_gradients_of_eager_mode() -> None:
    """One after another in one process: what was traced for one must not serve the next."""
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    tensors = leaves(4, 8)
    for name, function in [*NORMS.items(), *NORMS.items()]:
        with torch._dynamo.compiled_autograd._enable(compiler):
            compiled = gradients(function, tensors)
        for got, expected in zip(compiled, gradients(function, tensors), strict=True):
            assert (got is None) == (expected is None), name
            assert got is None or torch.equal(got, expected), name


def test_compiled_autograd_takes_a_forward_from_inside_a_policy_context() -> None:
    def function(*tensors: Tensor) -> Tensor:
        with tefl.with_preference("vendor"):
            return NORMS["rmsnorm"](*tensors)

    tensors = leaves(4, 8)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        compiled = gradients(function, tensors)
    assert all(map(torch.equal, compiled[:2], gradients(function, tensors)[:2]))


# --- export ---


class Block(torch.nn.Module):
    """All three norms in one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(random(8, dtype=torch.float64, seed=1))

    def forward(self, x: Tensor) -> Tensor:
        normed = ops.rmsnorm_fwd(x, self.weight)[0]
        out, residual_out, _ = ops.add_rmsnorm_fwd(normed, x, self.weight)
        return ops.layernorm_fwd(out + residual_out, self.weight, self.weight)[0]


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
def test_export_keeps_the_ops(strict: bool, dynamic: bool) -> None:
    block, x = Block(), random(4, 8, dtype=torch.float64)
    shapes = {"x": {0: torch.export.Dim("rows", min=2)}} if dynamic else None
    program = torch.export.export(block, (x,), dynamic_shapes=shapes, strict=strict)
    targets = [str(node.target) for node in program.graph.nodes if "tefl" in str(node.target)]
    assert targets == [
        "tefl.rmsnorm_fwd.default",
        "tefl.add_rmsnorm_fwd.default",
        "tefl.layernorm_fwd.default",
    ]
    for rows in (4, 7) if dynamic else (4,):
        other = random(rows, 8, dtype=torch.float64, seed=2)
        torch.testing.assert_close(program.module()(other), block(other))


def test_an_exported_program_can_be_decomposed() -> None:
    block, x = Block(), random(4, 8, dtype=torch.float64)
    program = torch.export.export(block, (x,)).run_decompositions()
    torch.testing.assert_close(program.module()(x), block(x))


def test_sizes_that_depend_on_data_export() -> None:
    class Selected(torch.nn.Module):
        def forward(self, x: Tensor, keep: Tensor, weight: Tensor) -> Tensor:
            return ops.rmsnorm_fwd(x[keep], weight)[0]

    x, weight = random(6, 8), random(8)
    keep = torch.tensor([True, False, True, True, False, True])
    program = torch.export.export(Selected(), (x, keep, weight))
    assert torch.equal(program.module()(x, ~keep, weight), Selected()(x, ~keep, weight))
