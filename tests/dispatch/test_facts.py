"""What is read from a call's tensors for the predicates."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tefl
from tefl.dispatch import Facts
from tefl.dispatch.facts import gather


def test_a_call_without_tensors_is_one_on_the_cpu() -> None:
    assert gather(None, ()) == Facts("cpu")


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_the_cpu_has_no_index_and_no_architecture(device: str) -> None:
    assert gather(torch.device(device), (torch.float32,)) == Facts("cpu", None, (torch.float32,))


def test_another_device_keeps_its_type_and_index() -> None:
    assert gather(torch.device("xpu", 2), (torch.int8,)) == Facts("xpu", 2, (torch.int8,))


def test_the_claimed_device_is_privateuse1_under_its_name_with_what_its_provider_said(fresh_python) -> None:
    done = fresh_python(
        """
        import torch, tefl
        from tefl.dispatch.facts import gather
        torch.utils.rename_privateuse1_backend("acme")
        device = torch.device("acme:1")
        print(gather(device, ()))
        tefl.dispatch.set_active_provider(
            name="sim", device_name="acme", alias="cpu", arch=lambda index: (index, 5) if index else None)
        print(gather(device, ()))
        print(gather(torch.device("acme:0"), ()).arch)
        """
    )
    assert done.stdout.splitlines() == [
        str(Facts("privateuse1", 1, device_name="acme")),
        str(Facts("privateuse1", 1, (), (1, 5), "sim", "cpu", "acme")),
        "None",
    ]


def test_a_new_provider_has_everything_decided_anew(fresh_python) -> None:
    done = fresh_python(
        """
        import torch, tefl
        answers = iter(["not yet", None])
        registry = tefl.get_registry()
        registry.register_impl(tefl.OpImpl("op", "default.x", "flagos", lambda x: "x", is_available=lambda: next(answers)))
        registry.register_impl(tefl.OpImpl("op", "reference.y", "reference", lambda x: "y"))
        call = lambda: tefl.get_manager().call("op", torch.ones(1))
        print(call(), call())
        tefl.dispatch.set_active_provider(name="sim", device_name="sim", alias="cpu", arch=lambda index: None)
        print(call())
        """  # noqa: E501
    )
    assert done.stdout.split() == ["y", "y", "x"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="asks a GPU for its compute capability")
def test_a_gpu_has_its_compute_capability() -> None:
    facts = gather(torch.device("cuda", 0), (torch.float16,))
    assert facts == Facts("cuda", 0, (torch.float16,), torch.cuda.get_device_capability(0))


def test_a_fake_tensor_on_a_gpu_that_is_not_here_has_no_compute_capability() -> None:
    index = torch.cuda.device_count()
    assert gather(torch.device("cuda", index), ()) == Facts("cuda", index)
    with FakeTensorMode():
        x, w = torch.empty(2, 4, device=f"cuda:{index}"), torch.empty(4, device=f"cuda:{index}")
        decision = tefl.explain("rmsnorm_fwd", x, w)
    assert decision.facts.device_type == "cuda"
    assert decision.winner is not None
