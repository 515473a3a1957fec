"""Calls in Transformer Engine's signatures: mapped for tefl's implementations, untouched for a plugin's."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import torch

import tefl
from tefl.compat.transformer_engine._conventions import CONVENTIONS, Convention
from tefl.dispatch import OpDecl, declarations, declare

NORMS = ("layernorm_fwd", "layernorm_bwd", "rmsnorm_fwd", "rmsnorm_bwd", "rmsnorm_bwd_add")


def arguments(op_name: str) -> tuple[list[Any], dict[str, Any]]:
    """A call in Transformer Engine's form, and the same in ours."""
    x, w, b, dz = torch.randn(5, 16), torch.randn(16), torch.randn(16), torch.randn(5, 16)
    mu, rsigma, add = x.mean(-1), (x.square().mean(-1) + 1e-3).rsqrt(), torch.randn(5, 16)
    centred = {"zero_centered_gamma": True}
    narrow = {**centred, "out_dtype": torch.bfloat16}
    backward = {"grad": dz, "input": x, "rsigma": rsigma, "weight": w, **centred}
    return {
        "layernorm_fwd": (
            [x, w, b, 1e-3, None, None, torch.bfloat16, 4, True],
            {"input": x, "weight": w, "bias": b, "eps": 1e-3, **narrow},
        ),
        "rmsnorm_fwd": (
            [x, w, 1e-3, None, None, torch.bfloat16, 4, True],
            {"input": x, "weight": w, "eps": 1e-3, **narrow},
        ),
        "layernorm_bwd": ([dz, x, mu, rsigma, w, 4, True], {**backward, "mu": mu}),
        "rmsnorm_bwd": ([dz, x, rsigma, w, 4, True], backward),
        "rmsnorm_bwd_add": ([dz, x, add, rsigma, w, 4, True], {**backward, "add": add}),
    }[op_name]


@pytest.mark.parametrize("op_name", NORMS)
def test_every_op_gives_the_same_results_in_their_signature_and_in_ours(manager, op_name: str) -> None:
    theirs, ours = arguments(op_name)
    want = list(tefl.get_manager().call(op_name, **ours))
    if op_name == "rmsnorm_fwd":
        want.insert(1, None)
    got = manager.call(op_name, *theirs)
    assert isinstance(got, tuple)
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert one is other is None or torch.equal(one, other)


@pytest.mark.parametrize("op_name", CONVENTIONS)
def test_the_mapping_names_arguments_and_results_that_the_op_has(op_name: str) -> None:
    schema = torch._C.parse_schema(f"tefl::{op_name}{declarations()[op_name].schema}")
    special = {"ln_out", "quantizer", "otype", "sm_margin", "chunk_size", "?"}
    ours = set(CONVENTIONS[op_name].names.values()) - special
    assert ours <= {argument.name for argument in schema.arguments}
    assert {a.name for a in schema.arguments if not a.kwarg_only} <= ours
    results = [name for name in CONVENTIONS[op_name].results.split() if name != "None"]
    assert results == [result.name for result in schema.returns]


def test_every_op_that_transformer_engine_has_too_is_mapped() -> None:
    assert set(NORMS) == set(CONVENTIONS)
    assert set(declarations()) - set(CONVENTIONS) >= {"add_rmsnorm_fwd", "add_rmsnorm_bwd"}


def test_an_op_of_ours_alone_is_called_in_our_signature(manager) -> None:
    x, w = torch.randn(2, 8), torch.randn(8)
    for got, want in zip(
        manager.call("add_rmsnorm_fwd", x, x, w), torch.ops.tefl.add_rmsnorm_fwd(x, x, w), strict=True
    ):
        assert torch.equal(got, want)


def test_what_is_left_out_has_our_default_and_their_names_and_ours_are_taken(manager) -> None:
    x, w = torch.randn(2, 8), torch.randn(8)
    want = torch.ops.tefl.rmsnorm_fwd(x, w)
    for got in (
        manager.call("rmsnorm_fwd", x, w),
        manager.call("rmsnorm_fwd", x, w, eps=1e-5),
        manager.call("rmsnorm_fwd", input=x, weight=w, sm_margin=0, otype=None),
    ):
        assert torch.equal(got[0], want[0])
        assert got[1] is None
        assert torch.equal(got[2], want[1])


def test_a_given_output_receives_the_result_and_its_dtype(manager) -> None:
    x, w, out = torch.randn(2, 8), torch.randn(8), torch.empty(2, 8, dtype=torch.bfloat16)
    y, _, _ = manager.call("rmsnorm_fwd", x, w, 1e-5, out, None, None, 0, False)
    assert y is out
    assert torch.equal(out, torch.ops.tefl.rmsnorm_fwd(x, w, out_dtype=torch.bfloat16)[0])


@pytest.mark.parametrize("form", ["torch", "enum", "number", "foreign"])
def test_the_output_dtype_may_be_torchs_theirs_a_number_or_another_packages(core, manager, form: str) -> None:
    class Foreign:
        name = "kBFloat16"

    otype = {"torch": torch.bfloat16, "enum": core.DType.kBFloat16, "number": 6, "foreign": Foreign()}[form]
    y, _, _ = manager.call("rmsnorm_fwd", torch.ones(2, 8), torch.ones(8), 1e-5, None, None, otype, 0, False)
    assert y.dtype is torch.bfloat16


@pytest.mark.parametrize("otype", ["bfloat", 99, True, object()])
def test_an_output_dtype_that_torch_lacks_is_quoted(manager, otype: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"otype={otype!r} is no dtype")):
        manager.call("rmsnorm_fwd", torch.ones(2, 8), torch.ones(8), 1e-5, None, None, otype, 0, False)


def test_too_many_arguments_and_two_of_one_name_are_errors_that_say_so(manager) -> None:
    x, w = torch.ones(2, 8), torch.ones(8)
    with pytest.raises(TypeError, match=r"rmsnorm_fwd\(input, .*\) takes 8 arguments, got 9"):
        manager.call("rmsnorm_fwd", x, w, 1e-5, None, None, None, 0, False, 1)
    with pytest.raises(TypeError, match="rmsnorm_fwd got argument 'weight' twice"):
        manager.call("rmsnorm_fwd", x, w, weight=w)
    with pytest.raises(TypeError, match="has no argument 'epsilon'"):
        manager.call("rmsnorm_fwd", x, w, epsilon=1e-5)


class Quantizer:
    """What Transformer Engine has and tefl has not."""


@pytest.mark.parametrize(("place", "name"), [(3, "ln_out"), (4, "quantizer")])
def test_a_quantizer_or_a_quantized_output_is_named_where_no_plugin_takes_it(
    manager, place: int, name: str
) -> None:
    call = [torch.ones(2, 8), torch.ones(8), 1e-5, None, None, torch.float32, 0, False]
    call[place] = Quantizer()
    with pytest.raises(
        NotImplementedError, match=rf"rmsnorm_fwd: {name}=Quantizer cannot be mapped.*pass {name}=None"
    ):
        manager.call("rmsnorm_fwd", *call)


def test_a_plugins_function_gets_the_call_as_it_is_and_its_answer_is_not_touched(manager, add) -> None:
    seen: list[Any] = []
    answer = [torch.ones(2, 8), None, torch.ones(2, 1, dtype=torch.float64)]

    def rmsnorm_fwd(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return answer

    add("rmsnorm_fwd", rmsnorm_fwd)
    call = (torch.ones(2, 8), torch.ones(8), 1e-5, None, None, torch.float32, 7)
    with tefl.with_preference("vendor"), tefl.record() as calls:
        assert manager.call("rmsnorm_fwd", *call, zero_centered_gamma=False) is answer
    assert seen == [(call, {"zero_centered_gamma": False})]
    assert calls == {("rmsnorm_fwd", "vendor.plugin", "cpu"): 1}


def test_a_plugin_takes_the_quantizer_that_tefl_cannot(manager, add) -> None:
    quantizer = Quantizer()
    add("rmsnorm_fwd", lambda *args: args[4])
    call = [torch.ones(2, 8), torch.ones(8), 1e-5, None, quantizer, torch.float32, 0, False]
    with tefl.with_preference("vendor"), tefl.record() as calls:
        assert manager.call("rmsnorm_fwd", *call) is quantizer
    assert calls == {("rmsnorm_fwd", "vendor.plugin", "cpu"): 1}
    with tefl.with_denied_vendors("plugin"), pytest.raises(NotImplementedError, match="quantizer=Quantizer"):
        manager.call("rmsnorm_fwd", *call)


def test_a_plugin_that_fails_is_replaced_and_the_answer_is_in_their_form(manager, add) -> None:
    def rmsnorm_fwd(*args: Any) -> Any:
        raise OSError("no device")

    add("rmsnorm_fwd", rmsnorm_fwd)
    x, w = torch.randn(2, 8), torch.randn(8)
    call = (x, w, 1e-5, None, None, torch.float32, 0, False)
    with tefl.with_preference("vendor"):
        y, nothing, _ = manager.call("rmsnorm_fwd", *call)
        assert nothing is None
        assert torch.equal(y, torch.ops.tefl.rmsnorm_fwd(x, w)[0])
        with tefl.with_strict_mode(), pytest.raises(OSError, match="no device"):
            manager.call("rmsnorm_fwd", *call)


@pytest.mark.parametrize("answer", [(torch.ones(2, 9), None, torch.ones(2)), (torch.ones(2, 8),), "nothing"])
def test_an_answer_of_another_form_than_the_op_promises_is_a_failure(manager, add, answer: Any) -> None:
    add("rmsnorm_fwd", lambda *args: answer)
    x, w = torch.randn(2, 8), torch.randn(8)
    with tefl.with_preference("vendor"):
        y, nothing, _ = manager.call("rmsnorm_fwd", x, w, 1e-5, None, None, torch.float32, 0, False)
    assert nothing is None
    assert torch.equal(y, torch.ops.tefl.rmsnorm_fwd(x, w)[0])


def test_a_plugins_function_may_call_the_same_op_itself(manager, add) -> None:
    def rmsnorm_fwd(x: Any, w: Any, eps: float, *rest: Any) -> Any:
        with tefl.with_preference("reference"):
            y, _, rsigma = manager.call("rmsnorm_fwd", x + 1, w, eps, *rest)
        return y, None, rsigma

    add("rmsnorm_fwd", rmsnorm_fwd)
    x, w = torch.randn(2, 8), torch.randn(8)
    with tefl.with_preference("vendor"):
        y, _, _ = manager.call("rmsnorm_fwd", x, w, 1e-5, None, None, torch.float32, 0, False)
    assert torch.equal(y, torch.ops.tefl.rmsnorm_fwd(x + 1, w)[0])


def test_no_gradient_is_recorded(manager) -> None:
    x = torch.ones(2, 8, requires_grad=True)
    assert not manager.call("rmsnorm_fwd", x, torch.ones(8))[0].requires_grad


# --- other ways in ------------------------------------------------------------------------------------------


def test_ops_are_attributes_of_the_module(core, manager) -> None:
    module = core.TEFLModule(manager)
    x, w = torch.randn(2, 8), torch.randn(8)
    want = torch.ops.tefl.rmsnorm_fwd(x, w)[0]
    for function in (module.rmsnorm_fwd, module["rmsnorm_fwd"]):
        assert torch.equal(function(x, w, 1e-5, None, None, module.DType.kFloat32, 0, False)[0], want)
    assert {"rmsnorm_fwd", "layernorm_bwd", "DType"} <= set(dir(module))


def test_an_op_that_is_not_there_yet_is_named(core, manager) -> None:
    with pytest.raises(AttributeError, match="tefl has no op 'swiglu' yet"):
        core.TEFLModule(manager).swiglu  # noqa: B018
    with pytest.raises(tefl.dispatch.DispatchError, match="op 'swiglu' is neither declared nor registered"):
        manager.call("swiglu", torch.ones(2, 8), None)


def test_an_op_that_only_a_plugin_has_is_called_as_it_is(core, manager, add) -> None:
    add("swiglu", lambda x, quantizer: (x, quantizer))
    x = torch.ones(2)
    assert manager.call("swiglu", x, "q") == (x, "q")
    assert core.TEFLModule(manager).swiglu(x, "q") == (x, "q")


def test_every_implementation_that_is_listed_takes_their_arguments(manager, add) -> None:
    mine = add("rmsnorm_fwd", lambda *args: (args[0], None, args[0]))
    x, w = torch.randn(2, 8), torch.randn(8)
    listed = {impl.impl_id: impl for impl in manager.registry.get_implementations("rmsnorm_fwd")}
    built_in = {"default.flagos", "default.flaggems", "vendor.cuda", "reference.torch"}
    assert set(listed) >= built_in | {"vendor.plugin"}  # an installed plugin may bring more
    assert listed["vendor.plugin"] is mine
    reference = manager.registry.get_implementation("rmsnorm_fwd", "reference.torch")
    y, nothing, _ = reference.fn(x, w, 1e-5, None, None, torch.float32, 0, False)
    assert (nothing, reference.is_available()) == (None, True)
    assert torch.equal(y, torch.ops.tefl.rmsnorm_fwd(x, w)[0])
    with pytest.raises(NotImplementedError, match="quantizer=Quantizer cannot be mapped"):
        reference.fn(x, w, 1e-5, None, Quantizer(), torch.float32, 0, False)
    assert manager.registry.get_implementation("rmsnorm_fwd", "no.such") is None


def test_what_resolve_gives_takes_their_arguments(manager) -> None:
    with tefl.with_preference("reference"):
        y, nothing, _ = manager.resolve("rmsnorm_fwd")(torch.ones(2, 8), torch.ones(8), 0.0)
        assert manager.get_selected_impl_id("rmsnorm_fwd") == "reference.torch"
    assert torch.equal(y, torch.ones(2, 8))
    assert nothing is None


def test_a_list_of_lists_is_several_lists_and_a_chunk_size_is_a_hint(manager, add) -> None:
    """As the optimizer's ops will be called."""
    schema = "(Tensor(a!) noop_flag, Tensor[] inputs, Tensor(b!)[] outputs, float scale) -> ()"

    def scaled(noop_flag: Any, inputs: Any, outputs: Any, scale: float) -> None:
        for source, target in zip(inputs, outputs, strict=True):
            target.copy_(source * scale)

    undo = declare(OpDecl("te_scale", "test", schema, lambda *args: None, scaled))
    CONVENTIONS["te_scale"] = Convention("chunk_size noop_flag tensor_lists:inputs,outputs scale")
    try:
        manager.tefl.registry.register_impl(
            tefl.OpImpl("te_scale", "reference.torch", tefl.BackendImplKind.REFERENCE, scaled)
        )
        flag, source, target = torch.zeros(1, dtype=torch.int32), torch.ones(3), torch.zeros(3)
        assert manager.call("te_scale", 65536, flag, [[source], [target]], 2.0) is None
        assert torch.equal(target, torch.full((3,), 2.0))
        seen: list[Any] = []
        add("te_scale", lambda *args: seen.append(args))
        with tefl.with_preference("vendor"):
            manager.tefl.call("te_scale", flag, [source], [target], 2.0)
        assert seen == [(65536, flag, [[source], [target]], 2.0)]
    finally:
        del CONVENTIONS["te_scale"]
        undo()


# --- what a plugin says of an implementation ----------------------------------------------------------------


def test_dtypes_and_architectures_are_read_in_the_words_of_plugins(manager, add) -> None:
    add("rmsnorm_fwd", print, supported_dtypes={"bf16", "float32", torch.float16}, min_arch="sm_90")
    impl = manager.tefl.registry.get("rmsnorm_fwd", "vendor.plugin")
    assert impl.supported_dtypes == {torch.bfloat16, torch.float32, torch.float16}
    assert impl.min_arch == (9, 0)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("float32", {torch.float32}),
        (["torch.bfloat16", "fp16"], {torch.bfloat16, torch.float16}),
        ({"fp32", "fp8"}, {torch.float32}),
        ({"fp8"}, None),
        (None, None),
    ],
)
def test_words_that_are_no_dtype_are_left_aside_and_said_once(core, caplog, given: Any, read: Any) -> None:
    core_types = sys.modules["tefl.compat.transformer_engine.types"]
    core_types._warn_unknown.cache_clear()
    impls = [core.OpImpl("op", "vendor.v", "vendor", print, "v", 0, given) for _ in range(2)]
    assert impls[0].__tefl_impl__().supported_dtypes == read
    said = caplog.text.count("'vendor.v': supported_dtypes='fp8' is no dtype of torch's")
    assert said == (given is not None and "fp8" in given)


def test_another_vendors_word_for_an_architecture_is_not_compared_and_said_once(core, caplog) -> None:
    for _ in range(2):
        impl = core.OpImpl("op", "vendor.v2", "vendor", print, vendor="v", min_arch="acme_v2").__tefl_impl__()
        assert impl.min_arch is None
    assert caplog.text.count("'vendor.v2': min_arch='acme_v2' is no compute capability") == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vendor": None}, "kind 'vendor' needs vendor='<name>'"),
        ({"fn": 3}, "fn must be callable, got 3"),
        ({"supported_dtypes": ()}, "supported_dtypes must be None where all are meant, got frozenset()"),
        ({"kind": "best"}, "kind must be one of flagos, vendor, reference, got 'best'"),
    ],
)
def test_what_is_wrong_with_an_implementation_is_said_where_it_is_made(
    core, fields: Any, message: str
) -> None:
    good = {"op_name": "op", "impl_id": "vendor.v", "kind": "vendor", "fn": print, "vendor": "v"}
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        core.OpImpl(**{**good, **fields})


def test_is_available_is_that_of_the_function_and_counts_in_the_decision(manager, add) -> None:
    def rmsnorm_fwd(*args: Any) -> Any:
        raise AssertionError("must not run")

    rmsnorm_fwd._is_available = lambda: False  # type: ignore[attr-defined]
    impl = add("rmsnorm_fwd", rmsnorm_fwd)
    assert impl.is_available() is False
    with tefl.with_preference("vendor"):
        assert manager.call("rmsnorm_fwd", torch.ones(2, 8), torch.ones(8))[1] is None


@pytest.mark.parametrize(
    ("token", "matches"),
    [
        ("vendor", True),
        ("vendor:plugin", True),
        ("vendor:x", False),
        ("impl:vendor.plugin", True),
        ("flagos", False),
        ("VENDOR", True),
        ("Vendor:Plugin", True),
        (" vendor : plugin ", True),
        ("impl:Vendor.Plugin", False),
        ("plugin", False),
        ("flagos:plugin", False),
    ],
)
def test_a_token_matches_as_in_an_order(core, add, token: str, matches: bool) -> None:
    assert core.match_token(add("rmsnorm_fwd", print), token) is matches


@pytest.mark.parametrize("vendor", ["nvidia", "NVIDIA", "cuda"])
@pytest.mark.parametrize("token", ["vendor:nvidia", "vendor:Nvidia", "vendor:CUDA"])
def test_a_vendors_spelling_does_not_matter_to_a_token(core, vendor: str, token: str) -> None:
    impl = core.OpImpl("op", "vendor.v", core.BackendImplKind.VENDOR, print, vendor=vendor)
    assert core.match_token(impl, token)
    assert core.match_token(impl.__tefl_impl__(), token)
