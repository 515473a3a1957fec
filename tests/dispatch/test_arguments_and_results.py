"""How implementations are called, and what becomes of what they return."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tefl
from tefl import OpImpl, OpManager

SCHEMA = (
    "(Tensor input, Tensor? bias, float eps=1e-5, *, "
    "bool zero_centered_gamma=False, ScalarType? out_dtype=None) -> (Tensor, Tensor)"
)


@pytest.fixture
def name(declared) -> str:
    return declared(SCHEMA, fake=fake)


def fake(
    input: torch.Tensor,
    bias: Any,
    eps: float = 1e-5,
    *,
    zero_centered_gamma: bool = False,
    out_dtype: Any = None,
):
    return torch.empty_like(input, dtype=out_dtype), input.new_empty(input.shape[:-1], dtype=torch.float32)


def statistics(input: torch.Tensor) -> torch.Tensor:
    return input.float().mean(-1)


class TestArguments:
    @pytest.fixture
    def spy(self, add, implementation, name: str, x: torch.Tensor):
        spy = implementation((x, statistics(x)))
        add("vendor.acme", spy, to=name)
        return spy

    @pytest.mark.parametrize(
        ("args", "kwargs", "rest"),
        [
            ((None,), {}, (None, 1e-5)),
            ((None, 0.5), {}, (None, 0.5)),
            ((), {"bias": None}, (None, 1e-5)),
            ((None,), {"eps": 0.5}, (None, 0.5)),
        ],
    )
    def test_every_argument_is_passed_defaults_included(
        self, manager: OpManager, name: str, spy, x: torch.Tensor, args, kwargs, rest
    ) -> None:
        manager.call(name, x, *args, **kwargs)
        assert spy.arguments[0][0] is x
        assert spy.arguments[0][1:] == rest
        assert spy.arguments[1] == {"zero_centered_gamma": False, "out_dtype": None}

    def test_the_router_fills_in_what_torch_leaves_out(self, add, implementation) -> None:
        spy = implementation((torch.ones(2, 4), torch.ones(2)))
        impl = OpImpl("rmsnorm_fwd", "vendor.spy_on_arguments", "vendor", spy, vendor="spy", priority=999)
        tefl.get_registry().register_impl(impl)
        try:
            with tefl.with_preference("vendor"):
                torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4), 1e-5)
        finally:
            tefl.get_registry().unregister("vendor.spy_on_arguments")
        (_, _, eps), keywords = spy.arguments
        assert eps == 1e-5
        assert keywords == {"zero_centered_gamma": False, "out_dtype": None}

    def test_a_plugin_with_another_default_still_gets_the_schemas(self, manager, add, name, x) -> None:
        seen = []

        def plugin(input, bias, eps=123.0, **kwargs):
            seen.append(eps)
            return input, statistics(input)

        add("vendor.acme", plugin, to=name)
        manager.call(name, x, None)
        assert seen == [1e-5]

    @pytest.mark.usefixtures("spy")
    @pytest.mark.parametrize(
        ("args", "kwargs", "message"),
        [
            ((), {}, "needs argument 'bias'"),
            ((None, 1.0, 2.0), {}, "takes 3 positional arguments, got 4"),
            ((None,), {"epsilon": 1.0}, "has no argument 'epsilon'"),
            ((None,), {"bias": None}, "got argument 'bias' twice"),
            ((3.0,), {}, "argument 'bias' must be a tensor, got float"),
            (([torch.ones(3)],), {}, "argument 'bias' must be a tensor, got list"),
        ],
    )
    def test_arguments_that_do_not_fit_the_schema_are_named(
        self, manager: OpManager, name: str, x: torch.Tensor, args, kwargs, message: str
    ) -> None:
        with pytest.raises(TypeError, match=message):
            manager.call(name, x, *args, **kwargs)

    @pytest.mark.parametrize("given", [None, 3.0, [torch.ones(3)]])
    def test_a_tensor_that_is_required_must_be_one(self, manager: OpManager, name: str, given) -> None:
        with pytest.raises(TypeError, match="argument 'input' must be a tensor, got"):
            manager.call(name, given, None)

    def test_lists_of_tensors_are_lists_and_keyword_only_tensors_count(
        self, manager: OpManager, add, declared, x: torch.Tensor
    ) -> None:
        name = declared(
            "(Tensor[] inputs, *, Tensor scale) -> Tensor", fake=lambda inputs, *, scale: inputs[0]
        )
        seen, result = [], torch.zeros(2, 3)
        add(
            "vendor.acme",
            lambda inputs, *, scale: result,
            to=name,
            is_available=lambda f: seen.append(f.dtypes),
        )
        assert manager.call(name, [x, x], scale=x.double()) is result
        assert seen == [(torch.float32, torch.float64)]
        with pytest.raises(TypeError, match="argument 'inputs' must be a list of tensors, got Tensor"):
            manager.call(name, x, scale=x)

    def test_a_lazily_negated_or_conjugated_tensor_is_made_a_plain_one(
        self, manager: OpManager, add, declared
    ) -> None:
        """As torch.ops does for kernels, which read memory as it is."""
        name = declared(
            "(Tensor[] inputs, *, Tensor? other=None) -> Tensor", fake=lambda inputs, **k: inputs[0]
        )
        seen: list[torch.Tensor] = []

        def read(inputs: list[torch.Tensor], *, other: torch.Tensor) -> torch.Tensor:
            seen[:] = *inputs, other
            return inputs[0].clone()

        add("vendor.acme", read, to=name)
        values = torch.tensor([1 + 2j, 3 - 4j])
        given = values.conj().imag, values.conj(), values.real
        assert (given[0].is_neg(), given[1].is_conj()) == (True, True)
        manager.call(name, list(given[:2]), other=given[2])
        assert not any(tensor.is_neg() or tensor.is_conj() for tensor in seen)
        assert [tensor.tolist() for tensor in seen] == [[-2.0, 4.0], [1 - 2j, 3 + 4j], [1.0, 3.0]]

    def test_one_that_the_op_writes_is_refused(self, manager: OpManager, add, declared) -> None:
        name = declared("(Tensor(a!) total, Tensor x) -> ()", fake=lambda total, x: None)
        add("vendor.acme", lambda total, x: None, to=name)
        lazy = torch.ones(2, dtype=torch.complex64).conj()
        manager.call(name, torch.ones(2), lazy)
        with pytest.raises(
            ValueError, match=r"argument 'total' is negated or conjugated lazily.*resolve_conj"
        ):
            manager.call(name, lazy, torch.ones(2))

    def test_the_check_runs_before_any_implementation_is_chosen(
        self, manager: OpManager, add, implementation, declared, x: torch.Tensor
    ) -> None:
        def check(input: torch.Tensor, eps: float = 1.0) -> None:
            if eps < 0:
                raise ValueError(f"eps must not be negative, got {eps}")

        asked, spy = [], implementation(x)
        name = declared(
            "(Tensor input, float eps=1.0) -> Tensor", fake=lambda input, eps=1.0: input, check=check
        )
        add("vendor.acme", spy, to=name, supports=lambda *args: asked.append(args))
        with pytest.raises(ValueError, match=r"eps must not be negative, got -1\.0"):
            manager.call(name, x, eps=-1.0)
        assert (asked, spy.calls) == ([], 0)


class TestAutograd:
    def test_the_manager_records_no_graph(self, manager: OpManager, add, name: str, x: torch.Tensor) -> None:
        x.requires_grad_()
        add("vendor.acme", lambda input, *args, **kwargs: (input * 2, statistics(input)), to=name)
        assert not any(result.requires_grad for result in manager.call(name, x, None))

    def test_an_argument_handed_back_does_not_require_grad(
        self, manager, add, op: str, x: torch.Tensor
    ) -> None:
        x.requires_grad_()
        add("vendor.acme", lambda x: (x, [x]))
        first, (second,) = manager.call(op, x)
        assert not first.requires_grad
        assert not second.requires_grad
        assert x.requires_grad


class TestResults:
    def test_statistics_with_a_last_dimension_of_one_lose_it_with_one_warning(
        self, manager: OpManager, add, name: str, x: torch.Tensor, warnings_in
    ) -> None:
        add("vendor.acme", lambda input, *a, **k: (input + 0, statistics(input).unsqueeze(-1)), to=name)
        for y in (x, x, torch.ones(4, 3)):
            _, mean = manager.call(name, y, None)
            torch.testing.assert_close(mean, torch.ones(len(y)))
        (warning,) = warnings_in("vendor.acme")
        assert "returned result 1 as float32 (2, 1), brought to float32 (2,)" in warning

    def test_dtypes_are_brought_to_the_promised_ones(self, manager, add, name, x, warnings_in) -> None:
        x = x.bfloat16()
        add("vendor.acme", lambda input, *a, **k: (input.float(), input.mean(-1)), to=name)
        out, mean = manager.call(name, x, None)
        assert (out.dtype, mean.dtype) == (torch.bfloat16, torch.float32)
        assert len(warnings_in("vendor.acme")) == 1

    def test_strides_are_brought_to_the_promised_ones(self, manager, add, name, x) -> None:
        add("vendor.acme", lambda input, *a, **k: (input.t().contiguous().t(), statistics(input)), to=name)
        out, _ = manager.call(name, x, None)
        assert out.stride() == (3, 1)
        torch.testing.assert_close(out, x)

    def test_results_that_are_right_are_passed_on_untouched(self, manager, add, name, x, warnings_in) -> None:
        results = x.clone(), statistics(x)
        add("vendor.acme", lambda *a, **k: list(results), to=name)
        got = manager.call(name, x, None)
        assert isinstance(got, tuple)
        assert all(a is b for a, b in zip(got, results, strict=True))
        assert warnings_in("") == []

    @pytest.mark.parametrize(
        "answer",
        [
            lambda input: (input, statistics(input)),
            lambda input: (input.view(2, 3, 1).squeeze(-1), statistics(input)),
            lambda input: (input + 0, input[:, 0]),
            lambda input: (out := input + 0, out[:, 0]),
        ],
        ids=["the argument", "a view of it", "a part of it", "another result"],
    )
    def test_results_get_memory_of_their_own_with_one_warning(
        self, manager: OpManager, add, name: str, x: torch.Tensor, answer, warnings_in
    ) -> None:
        add("vendor.acme", lambda input, *a, **k: answer(input), to=name)
        for _ in range(2):
            results = manager.call(name, x, None)
            assert [result.flatten()[0].item() for result in results] == [1.0, 1.0]
            results[0].zero_()
            assert (x == 1).all()
            assert (results[1] == 1).all()
            results[1].zero_()
            assert (x == 1).all()
        (warning,) = warnings_in("vendor.acme")
        assert "in its own memory" in warning

    def test_an_inference_tensor_is_copied_with_one_warning(
        self, manager: OpManager, add, name: str, x: torch.Tensor, warnings_in
    ) -> None:
        results = torch.inference_mode()(lambda input, *a, **k: (input + 0, statistics(input)))
        add("vendor.acme", results, to=name)
        for _ in range(2):
            assert not any(result.is_inference() for result in manager.call(name, x, None))
        assert len(warnings_in("vendor.acme")) == 1

    def test_an_argument_handed_back_does_not_share_memory_in_a_graph(self) -> None:
        def hand_back(input: torch.Tensor, *args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return input, torch.ones(2)

        impl = OpImpl("rmsnorm_fwd", "vendor.hands_back", "vendor", hand_back, vendor="h", priority=999)
        tefl.get_registry().register_impl(impl)
        x = torch.ones(2, 4, requires_grad=True)
        try:
            with tefl.with_preference("vendor"):
                out, _ = torch.ops.tefl.rmsnorm_fwd(x, torch.ones(4))
        finally:
            tefl.get_registry().unregister("vendor.hands_back")
        with torch.no_grad():
            out.zero_()
        assert (x == 1).all()

    def test_a_result_on_another_device_is_a_failure_of_the_implementation(
        self, manager: OpManager, add, name: str, x: torch.Tensor, warnings_in
    ) -> None:
        add("vendor.acme", lambda input, *a, **k: (input.to("meta"), statistics(input)), to=name)
        with tefl.with_strict_mode(), pytest.raises(ValueError, match="result 0 on meta, wanted cpu"):
            manager.call(name, x, None)
        add("reference.torch", lambda input, *a, **k: (input + 0, statistics(input)), to=name)
        assert manager.call(name, x, None)[0].device.type == "cpu"
        assert len(warnings_in("'reference.torch' ran instead")) == 1

    def test_the_promise_follows_the_options_of_each_call(self, manager: OpManager, add, name, x) -> None:
        add("vendor.acme", lambda input, *a, **k: (input, statistics(input)), to=name)
        assert manager.call(name, x, None, out_dtype=torch.float16)[0].dtype == torch.float16
        assert manager.call(name, x, None)[0].dtype == torch.float32

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (lambda input: (input, statistics(input)[:1]), r"result 1 of shape \(1,\), wanted \(2,\)"),
            (lambda input: (input,), "returned 1 results, wanted 2"),
            (lambda input: input, "returned 1 results, wanted 2"),
            (lambda input: (input, 3.0), "returned float as result 1, wanted a tensor"),
        ],
    )
    def test_results_that_cannot_be_repaired_are_a_failure_of_the_implementation(
        self, manager: OpManager, add, name: str, x: torch.Tensor, answer, message: str, warnings_in
    ) -> None:
        add("vendor.acme", lambda input, *a, **k: answer(input), to=name)
        with tefl.with_strict_mode(), pytest.raises((TypeError, ValueError), match=message):
            manager.call(name, x, None)
        add("reference.torch", lambda input, *a, **k: (input, statistics(input)), to=name)
        assert len(manager.call(name, x, None)) == 2
        assert len(warnings_in("'reference.torch' ran instead")) == 1
