"""The device registrar: a script's --device accepts any registered name, and says which there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from provider_source import provider_source

SIM = str(Path(__file__).parent.parent.parent / "tefl" / "lib" / "tefl_sim.so")

SCRIPT = """
import argparse, sys
import tefl.privateuse1
parser = argparse.ArgumentParser(prog="train")
parser.add_argument("--device", type=tefl.privateuse1.device_arg, default="cpu")
device = parser.parse_args({arguments!r}).device
print(repr(device))
"""


def script(*arguments: str) -> str:
    return SCRIPT.format(arguments=list(arguments))


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("maca", "device(type='maca')"),
        ("maca:1", "device(type='maca', index=1)"),
        ("cpu", "device(type='cpu')"),
    ],
)
def test_the_chosen_provider_is_claimed_before_the_name_is_read(python, text, device):
    environment = {"TEFL_PROVIDER": "sim", "TEFL_DEVICE_NAME": "maca"}
    assert python(script("--device", text), **environment) == device


def test_the_only_installed_provider_is_claimed_even_without_autoload(python, site):
    site.install_provider("acme", SIM)
    environment = {**site.environment(), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert python(script("--device", "acme:0"), **environment) == "device(type='acme', index=0)"


def test_the_default_is_a_device_too(python):
    assert python(script()) == "device(type='cpu')"


def test_an_unknown_name_is_an_argument_error_that_lists_the_names(python):
    done = python.run(script("--device", "macca"), TEFL_PROVIDER="sim", TEFL_DEVICE_NAME="maca")
    assert done.returncode == 2
    assert "train: error: argument --device: 'macca' is no device here; known are cpu" in done.stderr
    assert "maca" in done.stderr.split("known are")[1]


def test_without_a_provider_the_error_says_how_to_get_one(python):
    done = python.run(script("--device", "maca"))
    assert done.returncode == 2
    assert "known are cpu" in done.stderr
    assert "TEFL_PROVIDER" in done.stderr


def test_a_device_that_torch_knows_and_cannot_use_is_refused(python):
    done = python.run(script("--device", "hpu"))
    assert done.returncode == 2
    assert "this torch cannot use 'hpu'; usable are cpu" in done.stderr


def test_an_index_that_is_not_there_is_told_with_how_many_there_are(python):
    environment = {"TEFL_PROVIDER": "sim", "TEFL_DEVICE_NAME": "maca", "TEFL_SIM_DEVICES": "3"}
    done = python.run(script("--device", "maca:3"), **environment)
    assert done.returncode == 2
    assert "there is no maca:3: 3 of 'maca' are visible" in done.stderr


def test_a_provider_that_cannot_be_claimed_is_told_with_its_defects(python, compile_library):
    library = compile_library("headless", provider_source(null=["malloc"]), "-w")
    done = python.run(script("--device", "acme"), TEFL_PROVIDER=str(library))
    assert done.returncode == 2
    assert "tefl_runtime.malloc is NULL" in done.stderr
    assert "Traceback" not in done.stderr
