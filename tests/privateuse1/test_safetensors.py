"""safetensors: what lies on the device is saved as it is, and comes back through the CPU."""

from __future__ import annotations

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model

pytestmark = pytest.mark.usefixtures("maca")


def test_tensors_are_saved_from_the_device_and_loaded_to_it(tmp_path):
    x = torch.arange(6.0, device="maca:1").reshape(2, 3).to(torch.bfloat16)
    save_file({"x": x}, tmp_path / "x.safetensors")
    loaded = load_file(tmp_path / "x.safetensors")["x"]
    assert (loaded.device.type, loaded.dtype) == ("cpu", torch.bfloat16)
    assert torch.equal(loaded, x.cpu())
    assert torch.equal(loaded.to("maca:0").cpu(), x.cpu())


def test_a_model_with_tied_weights_is_saved_and_loaded_in_place(tmp_path):
    def tied(device: str) -> torch.nn.Sequential:
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).to(device)
        model[1].weight = model[0].weight
        return model

    first, second = tied("maca:1"), tied("maca:0")
    save_model(first, str(tmp_path / "model.safetensors"))
    load_model(second, tmp_path / "model.safetensors")
    assert second[1].weight is second[0].weight
    assert second[0].weight.device == torch.device("maca:0")
    for name, value in first.state_dict().items():
        assert torch.equal(second.state_dict()[name].cpu(), value.cpu())


def test_loading_straight_to_the_device_is_still_closed_by_safetensors(tmp_path):
    """Where it no longer raises, its row of docs/limits.md can go."""
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    with pytest.raises(SafetensorError, match="device maca is invalid"):
        load_file(tmp_path / "x.safetensors", device="maca")
