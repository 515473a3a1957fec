"""Every public name of torch.cuda is a name of the device module, or listed with the reason."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path

import pytest
import torch
from claimed import PROVIDER

from tefl.privateuse1.absent import GRAPHS, IN_MEMORY, absent

#: What the device of this run has not, and why; and what a device has not that is no GPU of CUDA's.
ABSENT, MOST = absent(PROVIDER == "cuda"), absent(shares_gpu=False)

LIMITS = Path(__file__).parents[2] / "docs" / "limits.md"


def public_names(module: types.ModuleType) -> set[str]:
    """Return what a module of torch offers: what it lists, and what else it defines without an underscore."""
    defined = {
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    }
    constants = {"DEVICE_REQUIREMENT", "PYTORCH_RELEASES_CODE_CC", "DEVICE_IDS"}
    return ({*getattr(module, "__all__", ())} | defined) - constants


def test_every_name_of_torch_cuda_is_there_or_listed_with_the_reason(maca):
    missing = {name for name in public_names(torch.cuda) if name not in dir(maca)}
    assert missing - set(ABSENT) == set()


@pytest.mark.parametrize("part", ["memory", "random", "streams", "amp"])
def test_every_name_of_a_submodule_is_there_or_listed(maca, part):
    theirs, ours = getattr(torch.cuda, part), getattr(maca, part)
    assert {name for name in public_names(theirs) if not hasattr(ours, name)} - set(ABSENT) == set()


def test_nothing_is_both_there_and_listed(maca):
    assert set(ABSENT) & set(dir(maca)) == set()


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_asking_for_what_is_not_there_says_why(maca, name):
    assert not hasattr(maca, name)
    told = f"'torch.maca' has no attribute {name!r}: {ABSENT[name]}"
    with pytest.raises(AttributeError, match=re.escape(told)):
        getattr(maca, name)


def test_a_name_that_is_nobodys_is_not_explained(maca):
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        maca.nonsense  # noqa: B018


def test_the_documentation_lists_the_same_names_for_the_same_reasons():
    table = LIMITS.read_text().split("## Names of `torch.cuda`")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE)
    told = {name: reason for names, reason in rows for name in re.findall(r"`(\w+)`", names)}
    assert told == {name: reason for name, reason in MOST.items() if name in told}
    legacy = {name for name in MOST if name.endswith(("Storage", "Tensor"))}
    assert set(MOST) - set(told) == legacy  # a row says them all at once


def test_only_what_captures_graphs_is_there_when_a_gpu_is_shared_with_cuda():
    assert set(MOST) - set(absent(shares_gpu=True)) == set(GRAPHS) <= set(dir(torch.cuda))


@pytest.mark.sim_only("the cuda provider has CUDA's own")
@pytest.mark.parametrize("name", IN_MEMORY)
def test_what_the_memory_module_has_not_says_why(maca, name):
    assert hasattr(torch.cuda.memory, name)
    why = re.escape(IN_MEMORY[name])
    with pytest.raises(AttributeError, match=rf"module 'torch.maca.memory' has no attribute '{name}': {why}"):
        getattr(maca.memory, name)
    with pytest.raises(AttributeError, match=r"'torch.maca.memory' has no attribute 'nothing'$"):
        maca.memory.nothing  # noqa: B018
    assert f"`torch.maca.memory.{name}`" in LIMITS.read_text()


@pytest.mark.cuda_only
@pytest.mark.parametrize("name", IN_MEMORY)
def test_what_the_memory_module_has_of_a_shared_gpu_is_cudas_own(maca, name):
    assert getattr(maca.memory, name) is getattr(torch.cuda.memory, name)


@pytest.mark.cuda_only
def test_what_captures_graphs_is_cudas_own(maca):
    for name in (*GRAPHS, "is_current_stream_capturing"):
        assert getattr(maca, name) is getattr(torch.cuda, name)


SKIPPED = {
    "device": "a context of ours: it may be entered again",
    "device_of": "the same",
    "GradScaler": "torch.amp's arguments",
}


#: Arguments that we have besides, after torch.cuda's.
MORE = {"synchronize": ["timeout"]}


def shared_functions() -> list[str]:
    names = public_names(torch.cuda) - set(ABSENT) - set(SKIPPED)
    return sorted(name for name in names if inspect.isfunction(getattr(torch.cuda, name)))


@pytest.mark.parametrize("name", shared_functions())
def test_a_function_takes_the_arguments_that_torch_cudas_takes(maca, name):
    theirs, ours = (inspect.signature(getattr(module, name)).parameters for module in (torch.cuda, maca))
    assert list(ours) == [*theirs, *MORE.get(name, [])]
    required = [[n for n, p in each.items() if p.default is p.empty] for each in (ours, theirs)]
    assert required[0] == required[1]


# ------------------------------------------------------------------------------------ what they answer --


def test_questions_about_the_hardware_have_the_devices_answers(maca):
    assert maca.is_bf16_supported() is True
    assert maca.is_current_stream_capturing() is False
    assert (maca.get_arch_list(), maca.get_gencode_flags()) == ([], "")
    assert maca.ipc_collect() is None


@pytest.mark.sim_only("a GPU may use TensorFloat-32")
def test_matrix_products_on_the_host_use_no_tensorfloat(maca):
    assert maca.is_tf32_supported() is False


def test_errors_are_torchs_own(maca):
    assert maca.OutOfMemoryError is torch.OutOfMemoryError
    assert maca.AcceleratorError is torch.AcceleratorError


def test_a_stream_context_brings_back_stream_and_device(maca):
    before = maca.current_stream()
    other = maca.Stream(device="maca:1")
    with maca.StreamContext(other), maca.stream(None):
        assert maca.current_stream(1) == other
    assert (maca.current_stream(), maca.current_device()) == (before, 0)
    assert maca.current_stream(1) == maca.default_stream(1)


def test_mixed_precision_by_the_modules_own_names(maca):
    x = torch.ones(2, 2, device="maca")
    with maca.amp.autocast():
        assert (x @ x).dtype == torch.bfloat16  # the provider's choice
    with maca.amp.autocast(dtype=torch.float16):
        assert (x @ x).dtype == torch.float16
    with maca.amp.autocast(enabled=False):
        assert (x @ x).dtype == torch.float32
    scaler = maca.amp.GradScaler(init_scale=4.0)
    assert scaler.scale(x).device == x.device
    assert scaler.get_scale() == 4.0


def test_a_custom_function_is_cast_by_the_modules_own_decorators(maca):
    class Product(torch.autograd.Function):
        @staticmethod
        @maca.amp.custom_fwd(cast_inputs=torch.float16)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @maca.amp.custom_bwd
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad @ x.t() + x.t() @ grad

    x = torch.ones(2, 2, device="maca", requires_grad=True)
    with maca.amp.autocast():
        result = Product.apply(x)
    result.sum().backward()
    assert (result.dtype, x.grad.dtype) == (torch.float16, torch.float32)
