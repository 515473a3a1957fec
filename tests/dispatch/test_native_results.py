"""The compiled router looks at what an implementation returns: as it should be, mended, or a failure."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_op import Op
from torch import Tensor

import tefl
from tefl.dispatch.native import is_attached

pytestmark = pytest.mark.skipif(not is_attached(), reason="tests the compiled router, which was not built")


@pytest.fixture
def x() -> Tensor:
    return torch.arange(6.0).view(2, 3)


def ok(input: Tensor) -> list[Tensor]:
    return [input * 2, input.sum(-1)]


BAD_RESULTS = [
    (lambda x: (x,), "returned 1 results, wanted 2"),
    (lambda x: x, "returned 1 results, wanted 2"),
    (lambda x: None, "returned 0 results, wanted 2"),
    (lambda x: (x, 3.0), "returned float as result 1, wanted a tensor"),
    (lambda x: (x * 2, None), "returned NoneType as result 1, wanted a tensor"),
    (lambda x: (x[:1], x.sum(-1)), r"returned result 0 of shape \(1, 3\), wanted \(2, 3\)"),
    (lambda x: (x, x.sum(-1).to("meta")), "returned result 1 on meta, wanted cpu"),
    (lambda x: (x.int(), x.sum(-1)), "returned result 0 as torch.int32, wanted torch.float32"),
    (lambda x: (x, x.sum(-1).bool()), "returned result 1 as torch.bool, wanted torch.float32"),
    (lambda x: (x.cfloat(), x.sum(-1)), "returned result 0 as torch.complex64, wanted torch.float32"),
]


@pytest.mark.parametrize(("bad", "says"), BAD_RESULTS, ids=[says[:38] for _, says in BAD_RESULTS])
@pytest.mark.parametrize("calls_before", [0, 2], ids=["at first", "after good ones"])
def test_bad_results_are_a_failure_that_names_op_and_implementation(
    native: Op, x: Tensor, bad: Callable[..., Any], says: str, calls_before: int
) -> None:
    count = itertools.count()

    def implementation(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        return ok(input) if next(count) < calls_before else bad(input)

    native.add("vendor.acme", implementation)
    with tefl.with_strict_mode():
        for _ in range(calls_before):
            native.call(x)
        with pytest.raises((TypeError, ValueError), match=f"Op '{native.name}': .*'vendor.acme' {says}"):
            native.call(x)


@pytest.mark.parametrize("calls_before", [0, 2])
def test_a_dtype_or_shape_that_can_be_mended_is(
    native: Op, x: Tensor, calls_before: int, warnings_in: Callable[[str], list[str]]
) -> None:
    count = itertools.count()

    def implementation(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if next(count) < calls_before:
            return ok(input)
        return input.double() * 2, input.sum(-1, keepdim=True)

    native.add("vendor.acme", implementation)
    for _ in range(calls_before + 2):
        out, total = native.call(x)
        assert (out.dtype, total.shape) == (torch.float32, (2,))
        torch.testing.assert_close((out, total), (x * 2, x.sum(-1)))
    assert len(warnings_in("brought to")) == 1


@pytest.mark.parametrize("fn", [lambda x: (x.double(), 3), lambda x: (x, 3)], ids=["dtype", "memory"])
def test_a_tensor_beside_a_result_that_is_none_is_looked_at_as_well(register_op, x: Tensor, fn: Any) -> None:
    op = register_op("(Tensor x) -> (Tensor, int)", lambda x: (torch.empty_like(x), 0), fn)
    for _ in range(3):
        out, number = op(x)
        assert (out.dtype, number) == (x.dtype, 3)
        assert out.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("calls_before", [0, 2], ids=["at first", "after good ones"])
def test_an_inference_tensor_is_copied_for_a_caller_who_is_not_in_that_mode(
    native: Op, x: Tensor, calls_before: int, warnings_in: Callable[[str], list[str]]
) -> None:
    count = itertools.count()

    def implementation(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if next(count) < calls_before:
            return ok(input)
        with torch.inference_mode():
            return ok(input)

    native.add("vendor.acme", implementation)
    for _ in range(calls_before + 3):
        results = native.call(x)
        assert not any(result.is_inference() for result in results)
        assert torch.equal(results[0], x * 2)
    assert len(warnings_in("brought to")) == 1
    with torch.inference_mode():
        assert all(result.is_inference() for result in native.call(x))


def test_two_results_that_are_slices_of_one_buffer_get_memory_of_their_own(native: Op, x: Tensor) -> None:
    def slices(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        flat = torch.cat([input.flatten() * 2, input.sum(-1)])
        return flat[:6].view(2, 3), flat[6:]

    native.add("vendor.acme", slices)
    for _ in range(3):
        out, total = native.call(x)
        version = total._version
        out.zero_()
        assert total.tolist() == [3.0, 12.0]
        assert total._version == version
