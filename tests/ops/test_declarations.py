"""What holds for every declared op. A new family joins by its samples."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import tefl
import tefl.ops
from tefl.dispatch.types import BackendImplKind, OpDecl
from tefl.kernels.reference.table import implementations as references

from .samples import BAD, GOOD, Bad, Sample

OPS = tefl.ops()
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

each_op = pytest.mark.parametrize("decl", OPS, ids=lambda decl: decl.name)
each_differentiable_op = pytest.mark.parametrize(
    "decl", [decl for decl in OPS if decl.backward], ids=lambda decl: decl.name
)
each_sample = pytest.mark.parametrize(
    ("op", "sample"),
    [
        pytest.param(decl.name, sample, id=f"{decl.name}-{str(dtype)[6:]}-{sample.label}")
        for decl in OPS
        for dtype in DTYPES
        for sample in GOOD[decl.name](dtype)
    ],
)
BAD_CALLS = [
    pytest.param(decl.name, bad, id=f"{decl.name}-{bad.label}") for decl in OPS for bad in BAD[decl.name]()
]


def overload(name: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.tefl, name).default


def described(results: Tensor | tuple[Tensor, ...]) -> list[tuple[object, ...]]:
    results = results if isinstance(results, tuple) else (results,)
    return [(tuple(r.shape), r.stride(), r.dtype, r.device, r.layout) for r in results]


def test_the_norm_family_is_declared_as_listed() -> None:
    assert {decl.name for decl in OPS if decl.family == "norm"} == {
        "layernorm_fwd",
        "layernorm_bwd",
        "rmsnorm_fwd",
        "rmsnorm_bwd",
        "rmsnorm_bwd_add",
        "add_rmsnorm_fwd",
        "add_rmsnorm_bwd",
    }


@each_op
def test_the_schema_is_what_torch_has(decl: OpDecl) -> None:
    assert str(overload(decl.name)._schema) == str(torch._C.parse_schema(f"tefl::{decl.name}{decl.schema}"))


@each_op
@pytest.mark.parametrize("part", ["fake", "reference", "check"])
def test_each_function_of_a_declaration_has_the_schemas_signature(decl: OpDecl, part: str) -> None:
    function = getattr(decl, part)
    function = function.resolve() if hasattr(function, "resolve") else function
    have = [
        (p.name, p.kind is p.KEYWORD_ONLY, "required" if p.default is p.empty else p.default)
        for p in inspect.signature(function).parameters.values()
    ]
    assert have == [
        (a.name, a.kwarg_only, a.default_value if a.has_default_value() else "required")
        for a in overload(decl.name)._schema.arguments
    ]


@each_op
@pytest.mark.parametrize("key", ["CPU", "CUDA", "PrivateUse1", "Meta", "Autograd"])
def test_an_op_has_a_kernel_for_every_kind_of_device(decl: OpDecl, key: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"tefl::{decl.name}", key)


@each_op
def test_the_declared_reference_is_the_registered_one(decl: OpDecl) -> None:
    (impl,) = [impl for impl in references() if impl.op_name == decl.name]
    assert impl.impl_id == "reference.torch"
    assert impl.kind is BackendImplKind.REFERENCE
    assert impl.fn.resolve() is decl.reference.resolve()


@each_differentiable_op
def test_a_backward_is_fed_with_what_its_schema_asks_for(decl: OpDecl) -> None:
    backward = decl.backward
    assert backward is not None
    forward, wanted = overload(decl.name)._schema, overload(backward.op)._schema
    results = {result.name: str(result.type) for result in forward.returns}
    arguments = {argument.name: str(argument.type) for argument in forward.arguments}
    sources = {
        "grad": results,
        "output": results,
        "input": arguments,
        "needs": dict.fromkeys(arguments, "bool"),
    }
    assert len(backward.args) == len(wanted.arguments)
    for (kind, name), argument in zip(backward.args, wanted.arguments, strict=True):
        fed = sources[kind][str(name)]
        assert fed == str(argument.type).removeprefix("Optional[").removesuffix("]"), argument.name


@each_differentiable_op
def test_every_tensor_that_goes_in_has_a_gradient_that_comes_out(decl: OpDecl) -> None:
    backward = decl.backward
    assert backward is not None
    arguments = overload(decl.name)._schema.arguments
    assert list(backward.grads) == [a.name for a in arguments if "Tensor" in str(a.type)]
    assert set(backward.grads.values()) <= set(range(len(overload(backward.op)._schema.returns)))


@each_sample
def test_the_fake_function_agrees_with_the_reference(op: str, sample: Sample) -> None:
    real = overload(op)(*sample.args, **sample.kwargs)
    meta = sample.mapped(lambda tensor: tensor.to("meta"))
    with FakeTensorMode() as mode:
        traced = sample.mapped(mode.from_tensor)
        assert described(overload(op)(*traced.args, **traced.kwargs)) == described(real)
    shapes = [row[:3] for row in described(real)]
    assert [row[:3] for row in described(overload(op)(*meta.args, **meta.kwargs))] == shapes


@each_sample
def test_results_share_no_memory_with_arguments(op: str, sample: Sample) -> None:
    storages = {t.untyped_storage().data_ptr() for t in sample.args if isinstance(t, Tensor) and t.numel()}
    results = overload(op)(*sample.args, **sample.kwargs)
    fresh = [r.untyped_storage().data_ptr() for r in results if r.numel()]
    assert not storages & set(fresh)
    assert len(set(fresh)) == len(fresh)


@each_sample
def test_arguments_are_left_as_they_were(op: str, sample: Sample) -> None:
    before = sample.mapped(torch.clone)
    overload(op)(*sample.args, **sample.kwargs)
    for was, now in zip(before.args, sample.args, strict=True):
        assert not isinstance(was, Tensor) or torch.equal(was, now)


REQUIRED = [
    pytest.param(decl.name, i, argument.name, id=f"{decl.name}-{argument.name}")
    for decl in OPS
    for i, argument in enumerate(overload(decl.name)._schema.arguments)
    if str(argument.type) == "Tensor"
]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("op", "position", "name"), REQUIRED)
def test_none_in_place_of_a_tensor_is_refused_by_name(op: str, position: int, name: str, device: str) -> None:
    sample = next(iter(GOOD[op](torch.float32))).mapped(lambda tensor: tensor.to(device))
    args = [None if i == position else arg for i, arg in enumerate(sample.args)]
    with pytest.raises(TypeError, match=rf"tefl::{op}: {name} is None; wanted a tensor"):
        overload(op)(*args, **sample.kwargs)


@pytest.mark.parametrize(("op", "bad"), BAD_CALLS)
def test_a_bad_call_is_refused_before_a_kernel_runs(op: str, bad: Bad) -> None:
    with tefl.record() as calls, pytest.raises(bad.error) as caught:
        overload(op)(*bad.args, **bad.kwargs)
    for part in bad.says:
        assert part in str(caught.value)
    assert not calls


@pytest.mark.parametrize(
    ("op", "bad"), [call for call in BAD_CALLS if "another device" not in call.values[1].label]
)
def test_a_bad_call_is_refused_while_tracing_too(op: str, bad: Bad) -> None:
    meta = Sample(bad.label, bad.args, bad.kwargs).mapped(lambda tensor: tensor.to("meta"))
    with pytest.raises(bad.error) as caught:
        overload(op)(*meta.args, **meta.kwargs)
    for part in bad.says:
        assert part in str(caught.value)
