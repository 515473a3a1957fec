"""Tensors leave and come back: torch.save and load, copies, pickles, DLPack, and what NumPy is refused."""

from __future__ import annotations

import copy
import io
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from claimed import DEVICES, INDEX, OTHER

pytestmark = pytest.mark.usefixtures("maca")

VALUES = [0.0, 1.0, 2.0, 3.0]


def saved(value: Any, **how: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **how)
    file.seek(0)
    return file


def on_second() -> torch.Tensor:
    return torch.tensor(VALUES, device=OTHER)


# ----------------------------------------------------------------------------------- map_location --

#: What torch.load documents for `map_location`, and where a tensor saved from maca:1 then comes to lie.
LOCATIONS: dict[str, tuple[Any, str]] = {
    "none": (None, OTHER),
    "the CPU by name": ("cpu", "cpu"),
    "a device by name": ("maca:0", "maca:0"),
    "the current device by name": ("maca", "maca:0"),
    "a torch.device": (torch.device("cpu"), "cpu"),
    "a dict that maps the location": ({OTHER: "maca:0"}, "maca:0"),
    "a dict to the CPU": ({OTHER: "cpu"}, "cpu"),
    "a dict without the location": ({"cuda:1": "cpu"}, OTHER),
    "a function that keeps the storage": (lambda storage, location: storage, "cpu"),
    "a function that moves the storage": (lambda storage, location: storage.maca(0), "maca:0"),
    "a function that declines": (lambda storage, location: None, OTHER),
    "meta": ("meta", "meta"),
}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip file", "legacy file"])
@pytest.mark.parametrize("name", LOCATIONS)
def test_a_saved_tensor_is_loaded_where_map_location_says(name, legacy):
    location, wanted = LOCATIONS[name]
    file = saved(on_second(), _use_new_zipfile_serialization=not legacy)
    loaded = torch.load(file, map_location=location)
    assert loaded.device == torch.device(wanted)
    assert wanted == "meta" or loaded.tolist() == VALUES


def test_a_torch_device_of_the_device_is_a_map_location():
    loaded = torch.load(saved(torch.tensor(VALUES)), map_location=torch.device(OTHER))
    assert (loaded.device, loaded.tolist()) == (torch.device(OTHER), VALUES)


def test_the_current_device_takes_what_is_loaded_to_the_bare_name(maca):
    with maca.device(INDEX):
        assert torch.load(saved(torch.tensor(VALUES)), map_location="maca").device == torch.device(OTHER)


def test_a_location_that_is_not_there_names_the_remedy_as_cuda_does():
    wanted = (
        f"Attempting to deserialize object on MACA device 7 but torch.maca.device_count() is {DEVICES}. "
        "Please use torch.load with map_location to map your storages to an existing device."
    )
    with pytest.raises(RuntimeError, match=re.escape(wanted)):
        torch.load(saved(on_second()), map_location="maca:7")


def test_a_memory_mapped_file_is_loaded_to_the_device(tmp_path):
    torch.save(torch.tensor(VALUES), tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", mmap=True, map_location=OTHER)
    assert (loaded.device, loaded.tolist()) == (torch.device(OTHER), VALUES)


def test_views_of_one_storage_are_still_that_after_loading():
    x = on_second()
    whole, part = torch.load(saved([x, x[1:]]))
    part.fill_(9)
    assert whole.tolist() == [0, 9, 9, 9]


def test_a_conjugated_tensor_keeps_its_values():
    x = torch.tensor([1 + 2j], device="maca")
    loaded = torch.load(saved(x.conj()))
    assert (loaded.device, loaded.tolist()) == (x.device, [1 - 2j])


def test_a_training_state_is_saved_on_one_device_and_resumed_on_another():
    model = torch.nn.Linear(3, 2, device=OTHER)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device=OTHER)).sum().backward()
    optimizer.step()
    file = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    state = torch.load(file, map_location="maca:0", weights_only=True)
    other = torch.nn.Linear(3, 2, device="maca:0")
    resumed = torch.optim.Adam(other.parameters())
    other.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    assert torch.equal(other.weight.cpu(), model.weight.cpu())
    moments = [resumed.state[other.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"]]
    assert [m.device.index for m in moments] == [0, INDEX]
    assert torch.equal(moments[0].cpu(), moments[1].cpu())


# ------------------------------------------------------------------------------- copies and pickles --


def test_a_deep_copy_has_memory_of_its_own_on_the_same_device():
    x = on_second()
    twin, part = copy.deepcopy([x, x[1:]])
    part.fill_(9)
    assert (x.tolist(), twin.tolist(), twin.device) == (VALUES, [0, 9, 9, 9], x.device)


def test_a_deep_copy_of_a_module_keeps_tied_weights_tied():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to(OTHER)
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model)
    assert twin[1].weight is twin[0].weight
    assert twin[0].weight is not model[0].weight
    assert isinstance(twin[0].weight, torch.nn.Parameter)
    assert twin[0].weight.device == torch.device(OTHER)


def test_a_deep_copy_of_a_storage_is_on_the_device():
    twin = copy.deepcopy(on_second().untyped_storage())
    assert (twin.device, twin.nbytes()) == (torch.device(OTHER), 16)


@pytest.mark.parametrize("device", sorted({"maca:0", OTHER}))
def test_tensors_and_modules_are_pickled_with_their_device(device):
    x, model = pickle.loads(
        pickle.dumps((torch.tensor(VALUES, device=device), torch.nn.Linear(2, 2, device=device)))
    )
    assert (x.device, x.tolist(), model.weight.device) == (torch.device(device), VALUES, torch.device(device))
    assert model.weight.requires_grad


@pytest.mark.parametrize(
    "through", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))], ids=["copy", "pickle"]
)
def test_a_generator_is_copied_with_its_device_and_place_in_the_sequence(through):
    generator = torch.Generator(OTHER).manual_seed(5)
    torch.rand(7, device=OTHER, generator=generator)
    twin = through(generator)
    assert (twin.device, twin.initial_seed()) == (torch.device(OTHER), 5)
    drawn = [torch.rand(3, device=OTHER, generator=g).tolist() for g in (generator, twin)]
    assert drawn[0] == drawn[1]


@pytest.mark.sim_only("CUDA's generators have an offset")
def test_a_generator_over_the_cpus_has_no_offset_to_set():
    generator = torch.Generator("maca")
    assert generator.get_offset() == 0
    generator.set_offset(0)
    with pytest.raises(RuntimeError, match="maca: a generator of this device has no offset, got 4"):
        generator.set_offset(4)


# ------------------------------------------------------------------------------------------ DLPack --


class Exported:
    """An object of another library: the device's memory, with DLPack's protocol for an external device."""

    EXTERNAL = 12  # kDLExtDev

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **how: Any) -> Any:
        return torch.utils.dlpack.to_dlpack(self.tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.EXTERNAL, self.tensor.device.index


def by_capsule(x: torch.Tensor) -> torch.Tensor:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))


def by_protocol(x: torch.Tensor) -> torch.Tensor:
    return torch.from_dlpack(Exported(x))


@pytest.mark.parametrize("exchange", [by_capsule, by_protocol, lambda x: torch.from_dlpack(x.__dlpack__())])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_dlpack_hands_over_the_same_memory(exchange, dtype):
    x = torch.tensor([[0, 1, 2], [3, 4, 5]], device=OTHER).to(dtype).t()
    y = exchange(x)
    assert (y.device, y.dtype, y.shape, y.stride()) == (x.device, dtype, x.shape, x.stride())
    assert y.data_ptr() == x.data_ptr()
    y[0, 0] = 1
    assert x[0, 0].item() == 1


@pytest.mark.parametrize("exchange", [by_capsule, by_protocol])
def test_what_dlpack_handed_over_outlives_the_tensor(exchange, maca):
    before = maca.memory_allocated(INDEX)
    y = exchange(torch.arange(1000.0, device=OTHER))
    torch.zeros(1000, device=OTHER)
    assert y.sum().item() == 499500
    del y
    assert maca.memory_allocated(INDEX) == before


def test_from_dlpack_of_the_tensor_itself_is_still_closed_by_torch():
    """Where it no longer raises, its row of docs/limits.md can go."""
    with pytest.raises(ValueError, match="Unknown device type maca for Dlpack"):
        torch.from_dlpack(on_second())


def test_a_capsule_is_used_once():
    capsule = torch.utils.dlpack.to_dlpack(on_second())
    torch.utils.dlpack.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="capsules can be consumed only once"):
        torch.utils.dlpack.from_dlpack(capsule)


def test_dlpack_refuses_tensors_that_require_a_gradient_as_on_the_cpu():
    with pytest.raises(BufferError, match="Can't export tensors that require gradient"):
        on_second().requires_grad_().__dlpack__()


# ------------------------------------------------------------------------------------------- NumPy --

#: torch's words for CUDA (torch/csrc/utils/tensor_numpy.cpp), with the device's name in CUDA's place.
REFUSED = (
    f"can't convert {OTHER} device type tensor to numpy. "
    "Use Tensor.cpu() to copy the tensor to host memory first."
)


@pytest.mark.parametrize(
    "convert",
    [lambda x: x.numpy(), np.asarray, np.array, lambda x: np.add(np.ones(4), x), lambda x: np.stack([x, x])],
    ids=["numpy", "asarray", "array", "ufunc", "stack"],
)
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_numpy_is_refused_as_cuda_refuses_it(convert):
    with pytest.raises(TypeError, match=re.escape(REFUSED)):
        convert(on_second())


def test_a_gradient_does_not_change_the_refusal():
    with pytest.raises(TypeError, match=re.escape(REFUSED)):
        on_second().requires_grad_().numpy()


def test_numpy_gets_a_copy_by_force_and_numbers_and_arrays_come_in():
    x = on_second()
    forced = x.numpy(force=True)
    forced[0] = 7
    assert (forced.tolist(), x.tolist()) == ([7, 1, 2, 3], VALUES)
    assert torch.as_tensor(np.array(VALUES), device=OTHER).device == x.device
    assert (np.float64(2) * x).tolist() == (x * np.float64(2)).tolist() == [0, 2, 4, 6]
    assert x[np.array([3, 1])].tolist() == [3, 1]
