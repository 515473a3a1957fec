"""The static question: can an implementation run on such a device, architecture and dtype."""

from __future__ import annotations

import functools

import pytest
import torch

from tefl import BackendImplKind, OpImpl, Slower
from tefl.dispatch import Facts
from tefl.dispatch.select import accepts, available

CPU = Facts("cpu", None, (torch.float32, torch.float32))
H200 = Facts("cuda", 0, (torch.bfloat16, torch.bfloat16), (9, 0))
MACA = Facts("privateuse1", 1, (torch.float32,), (10, 5), "maca", "cpu", "maca")


def impl(fn=print, **fields) -> OpImpl:
    return OpImpl("op", "default.test", BackendImplKind.DEFAULT, fn, **fields)


@pytest.mark.parametrize(
    ("devices", "facts", "verdict"),
    [
        (None, MACA, None),
        (("cpu", "cuda"), CPU, None),
        ("cuda", H200, None),
        (("CUDA",), H200, None),
        (("cuda",), CPU, "runs on cuda, not on cpu"),
        (("privateuse1",), MACA, None),
        (("maca",), MACA, None),
        (("cuda", "xpu"), MACA, "runs on cuda, xpu, not on maca"),
        (("maca",), CPU, "runs on maca, not on cpu"),
    ],
)
def test_devices(devices, facts: Facts, verdict: str | None) -> None:
    assert available(impl(devices=devices), facts) == verdict


@pytest.mark.parametrize("min_arch", [(8, 0), "8.0", 8, "8"])
def test_a_minimal_architecture_has_three_spellings(min_arch) -> None:
    assert available(impl(min_arch=min_arch), H200) is None
    turing = Facts("cuda", 0, (torch.float32,), (7, 5))
    assert available(impl(min_arch=min_arch), turing) == "needs compute capability 8.0, cuda has 7.5"


def test_a_minimal_architecture_compares_numbers_and_not_text() -> None:
    assert available(impl(min_arch="9.0"), MACA) is None


def test_a_device_without_architecture_meets_no_minimal_one() -> None:
    assert available(impl(min_arch=(8, 0)), CPU) == "needs compute capability 8.0, cpu has none"


@pytest.mark.parametrize("min_arch", ["sm_90", (9,) * 3, 8.5j])
def test_an_unreadable_architecture_is_refused_when_the_implementation_is_made(min_arch) -> None:
    with pytest.raises(ValueError, match="min_arch must be"):
        impl(min_arch=min_arch)


def test_every_floating_point_argument_must_have_a_supported_dtype() -> None:
    half = impl(supported_dtypes={torch.float16, torch.bfloat16})
    assert available(half, H200) is None
    mixed = Facts("cuda", 0, (torch.bfloat16, torch.float32), (9, 0))
    assert str(available(half, mixed)).endswith("not float32")
    with_index = Facts("cuda", 0, (torch.bfloat16, torch.int64), (9, 0))
    assert available(half, with_index) is None


def test_integer_arguments_count_where_there_is_no_other() -> None:
    integers = Facts("cpu", None, (torch.int32,))
    assert available(impl(supported_dtypes=[torch.int64]), integers) == "takes int64, not int32"
    assert available(impl(supported_dtypes=[torch.int64, torch.int32]), integers) is None


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (None, None),
        (True, None),
        (False, "is_available() answered False"),
        ("no compiler found", "no compiler found"),
        ("", "is_available() gave no reason"),
        (Slower("vendor.cuda", "small"), Slower("vendor.cuda", "small")),
    ],
)
def test_a_predicate_answers_none_a_bool_a_reason_or_slower(answer, verdict) -> None:
    assert available(impl(is_available=lambda: answer), CPU) == verdict
    asked = accepts(impl(supports=lambda: answer), (), {})
    assert asked == (verdict.replace("is_available", "supports") if isinstance(verdict, str) else verdict)


def test_an_exception_in_a_predicate_is_the_reason() -> None:
    def broken(*args):
        raise OSError("libacme.so: not found\nsearched nowhere")

    assert available(impl(is_available=broken), CPU) == "is_available() raised OSError: libacme.so: not found"
    reason = "supports() raised OSError: libacme.so: not found"
    assert accepts(impl(supports=broken), (1, 2), {}) == reason


def test_a_predicate_gets_the_facts_if_it_has_a_parameter() -> None:
    seen = []
    assert available(impl(is_available=lambda facts: seen.append(facts)), MACA) is None
    assert (
        available(impl(is_available=functools.partial(lambda a, facts: seen.append(facts), 1)), CPU) is None
    )
    assert seen == [MACA, CPU]


def test_a_predicate_whose_parameters_all_have_defaults_gets_nothing() -> None:
    assert available(impl(is_available=lambda library="here": library == "here"), CPU) is None


def test_a_builtin_without_a_signature_can_be_a_predicate() -> None:
    assert available(impl(is_available=bool), CPU) == "is_available() answered False"


def test_the_attribute_of_the_function_is_asked_too() -> None:
    def fn() -> None: ...

    fn._is_available = lambda: "the library is too old"
    assert available(impl(fn), CPU) == "the library is too old"
    assert available(impl(fn, is_available=lambda: True), CPU) == "the library is too old"
    fn._is_available = lambda: True
    assert available(impl(fn, is_available=lambda: "not here"), CPU) == "not here"
    fn._is_available = False
    assert available(impl(fn), CPU) == "fn._is_available() answered False"


def test_the_predicate_of_a_call_gets_its_arguments_as_the_implementation_does() -> None:
    seen = {}
    impl_ = impl(supports=lambda *args, **kwargs: seen.update(args=args, kwargs=kwargs))
    assert accepts(impl_, (1, 2), {"flag": True}) is None
    assert seen == {"args": (1, 2), "kwargs": {"flag": True}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "vendor"}, "kind 'vendor' needs vendor='<name>', got None"),
        ({"kind": "triton"}, "kind must be one of flagos, vendor, reference, got 'triton'"),
        ({"kind": "flagos", "fn": 3}, "fn must be callable, got 3"),
    ],
)
def test_an_implementation_that_makes_no_sense_is_refused(fields: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message.replace("(", r"\(")):
        OpImpl("op", "default.test", fields["kind"], fields.get("fn", print))
