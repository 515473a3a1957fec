"""Device names: which a provider may take, and what a name means."""

from __future__ import annotations

import pytest
import torch

from tefl.privateuse1.names import device_name_defects, parse_device_type

FREE = ["acme", "acme_two", "npu", "musa"]
# Names that torch's own rename accepts, and that then break: a digit, a device type, a module, a method.
TORCH_DEVICE_TYPES = [
    "cpu",
    "cuda",
    "meta",
    "xla",
    "hpu",
    "maia",
    "ipu",
    "ve",
    "fpga",
    "lazy",
    "vulkan",
    "mps",
]
TORCH_ATTRIBUTES = ["nn", "ops", "distributed", "float", "add", "_dynamo", "accelerator"]
METHODS = ["train", "requires_grad_", "to", "half", "leaf", "quantized"]


@pytest.mark.parametrize("name", FREE)
def test_a_free_name_has_no_defect(name):
    assert device_name_defects(name) == []


@pytest.mark.parametrize("name", ["maca1", "Maca", "ma ca", "ma-ca", "maca:0", "", "µ", "maca\n", None, 7])
def test_a_name_is_lower_case_letters_and_underscores(name):
    (defect,) = device_name_defects(name)
    assert defect.what == f"the device name {name!r} does not match [a-z_]+"
    assert "TEFL_DEVICE_NAME" in defect.remedy


@pytest.mark.parametrize("name", TORCH_DEVICE_TYPES)
def test_the_name_of_a_torch_device_is_taken(name):
    (defect,) = device_name_defects(name)
    assert defect.what == f"the device name {name!r} is taken by torch: it is a device type"


@pytest.mark.parametrize("name", TORCH_ATTRIBUTES)
def test_the_name_of_something_in_torch_is_taken(name):
    (defect,) = device_name_defects(name)
    assert f"torch.{name} exists" in defect.what


@pytest.mark.parametrize("name", METHODS)
def test_the_name_of_a_method_or_of_its_question_is_taken(name):
    (defect,) = device_name_defects(name)
    assert "is taken by torch" in defect.what
    assert "exists" in defect.what


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("cpu", "cpu"),
        ("cuda", "cuda"),
        ("cuda:1", "cuda"),
        ("meta", "meta"),
        ("privateuse1", "privateuse1"),
        ("privateuse1:1", "privateuse1"),
        ("privateuseone", "privateuse1"),
        ("privateuseone:0", "privateuse1"),
        ("acme", None),
        ("acme:1", None),
        ("", None),
        ("cuda:x", None),
        ("privateuse1:x", None),
        ("CPU", None),
    ],
)
def test_a_device_type_is_parsed_whether_or_not_one_is_claimed(text, kind):
    assert parse_device_type(text) == kind


def test_a_torch_device_is_parsed_too():
    assert parse_device_type(torch.device("cpu", 0)) == "cpu"


def test_the_claimed_name_is_parsed_under_each_spelling_and_starts_nothing(python):
    out = python(
        """
        import torch, tefl
        from tefl.privateuse1 import PrivateUse1Backend, parse_device_type, register_backend
        register_backend(PrivateUse1Backend(name="maca", provider="sim"))
        for text in ("maca", "maca:1", "privateuse1", "privateuse1:1", "cpu", "cuda:0", "acme"):
            print(parse_device_type(text), end=" ")
        print(parse_device_type(torch.device("maca", 1)), torch.device("maca:1"), torch.maca.is_initialized())
        """
    )
    assert out == "privateuse1 privateuse1 privateuse1 privateuse1 cpu cuda None privateuse1 maca:1 False"
