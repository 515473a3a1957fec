"""A declaration that cannot become an op: what it says, and that nothing is left of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tefl
from tefl.dispatch import Backward, OpDecl
from tefl.dispatch import schema as schemas

UNARY = "(Tensor x, float scale=2.0) -> (Tensor out, Tensor total)"


def decl(name: str, schema: str, backward: Backward | None = None) -> OpDecl:
    return OpDecl(name, "test", schema, lambda *args: (args[0], args[0]), torch.clone, None, backward)


def backward(**changed: Any) -> Backward:
    fields: dict[str, Any] = {"op": "test_undone_bwd", "args": (("grad", "out"),), "grads": {"x": 0}}
    return Backward(**fields | changed)


WRONG = {
    "malformed": ("(Tensor x", None, RuntimeError, "expected"),
    "no such type": ("(Tensor x, strange y) -> Tensor", None, RuntimeError, "strange"),
    "list": ("(Tensor x) -> Tensor[]", None, ValueError, "result 0 is .*; wanted is Tensor"),
    "list of optional": ("(Tensor x) -> (Tensor, Tensor?[])", None, ValueError, "result 1 is"),
    "grads": (UNARY, backward(grads={"scael": 0}), ValueError, "argument 'scael'.* nearest .* is 'scale'"),
    "grad": (UNARY, backward(args=(("grad", "totl"),)), ValueError, "result 'totl'.* nearest .* is 'total'"),
    "output": (UNARY, backward(args=(("output", "x"),)), ValueError, "result 'x'.* known are out, total"),
    "needs": (UNARY, backward(args=(("needs", "out"),)), ValueError, "argument 'out'.* known are scale, x"),
    "input": (UNARY, backward(args=(("input", 0),)), ValueError, "argument 0.* known are scale, x"),
    "differentiable": (UNARY, backward(differentiable=(1,)), ValueError, "result 1.* known are out, total"),
    "too far": (
        "(Tensor x) -> Tensor",
        backward(args=(("grad", 1),)),
        ValueError,
        "1.* none is known",
    ),
}


@pytest.fixture
def corrected(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Check that nothing is left of an op, by declaring it anew and calling it."""

    def check(name: str) -> None:
        assert name not in [op.name for op in tefl.ops()]
        assert not hasattr(torch.ops.tefl, name)
        tefl.ops.register(decl(name, UNARY))
        impl = tefl.OpImpl(name, "reference.torch", "reference", lambda x, scale: (x * scale, x + scale))
        tefl.get_registry().register_impl(impl)
        request.addfinalizer(lambda: tefl.get_registry().unregister("reference.torch", name))
        assert getattr(torch.ops.tefl, name)(torch.ones(2))[0].tolist() == [2.0, 2.0]

    return check


@pytest.mark.parametrize("what", WRONG)
def test_a_declaration_that_is_refused_leaves_nothing_behind(
    what: str, corrected: Callable[[str], None]
) -> None:
    name, (schema, formula, error, says) = f"test_undone_{list(WRONG).index(what)}", WRONG[what]
    with pytest.raises(error, match=f"(?s){says}"):
        tefl.ops.register(decl(name, schema, formula))
    corrected(name)


def test_neither_does_one_that_torch_refuses(corrected: Callable[[str], None]) -> None:
    """Another library has the name."""
    theirs = torch.library.Library("tefl", "FRAGMENT")  # type: ignore[no-untyped-call]
    theirs.define("test_undone_theirs(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="test_undone_theirs"):
        tefl.ops.register(decl("test_undone_theirs", UNARY))
    theirs._destroy()  # type: ignore[no-untyped-call]
    corrected("test_undone_theirs")


def test_neither_does_one_whose_kernels_torch_refuses(corrected: Callable[[str], None]) -> None:
    name = "test_undone_kernel"
    no_fake = OpDecl(name, "test", UNARY, None, torch.clone)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        tefl.ops.register(no_fake)
    corrected(name)


def test_a_second_declaration_leaves_the_first_alone() -> None:
    first = next(op for op in tefl.ops() if op.name == "rmsnorm_fwd")
    with pytest.raises(ValueError, match="op 'rmsnorm_fwd' is declared twice"):
        tefl.ops.register(decl("rmsnorm_fwd", UNARY))
    assert [op for op in tefl.ops() if op.name == "rmsnorm_fwd"] == [first]
    assert torch.ops.tefl.rmsnorm_fwd(torch.ones(1, 4), torch.ones(4))[0].shape == (1, 4)


def test_a_declaration_names_arguments_and_results_where_native_code_counts_them() -> None:
    named = backward(
        args=(("needs", "b"), ("grad", "total"), ("input", "option"), ("output", "out")),
        grads={"b": 1, "a": 0},
        differentiable=("total",),
    )
    schema = "(Tensor a, float scale, Tensor b, *, int option) -> (Tensor out, Tensor total)"
    formula = schemas.parse(decl("test_named", schema, named)).formula
    assert formula is not None
    assert formula.args == (("needs", 2), ("grad", 1), ("input", 3), ("output", 0))
    assert formula.grads == (0, None, 1, None)
    assert formula.differentiable == (1,)


def test_of_several_results_the_first_is_differentiable_unless_others_are_named() -> None:
    for results in ("Tensor", "(Tensor out, Tensor total)"):
        formula = schemas.parse(decl("test_first", f"(Tensor x) -> {results}", backward(args=()))).formula
        assert formula is not None
        assert formula.differentiable == (0,)
