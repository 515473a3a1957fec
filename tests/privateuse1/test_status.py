"""The broker's status: plain data that says who has the device, who would get it, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SIM = str(Path(__file__).parent.parent.parent / "tefl" / "lib" / "tefl_sim.so")
SHOW = "import json, torch\nfrom tefl.privateuse1 import status\nprint(json.dumps(status()))\n"
CLAIM = """
import torch
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend(name="maca", provider="sim"))
"""
NOBODY = dict.fromkeys(
    ("name", "provider", "version", "path", "abi", "alias", "collectives", "origin", "devices")
)


def test_a_claimed_device_is_told_with_its_provider(python):
    status = json.loads(python(CLAIM + SHOW, TEFL_SIM_DEVICES="5"))
    assert [candidate["name"] for candidate in status.pop("candidates")] == ["cuda", "sim"]
    assert status == {
        "registered": True,
        "name": "maca",
        "provider": "sim",
        "version": "0.1.0",
        "path": SIM,
        "abi": "1.1",
        "alias": "cpu",
        "collectives": "gloo, through the host: the provider has no CCL table, so its own links are not used",
        "origin": "register_backend",
        "devices": 5,
        "defects": [],
    }


def test_asking_starts_no_runtime_and_claims_nothing(python):
    assert python(CLAIM + SHOW + "print(torch.maca.is_initialized())").endswith("\nFalse")
    code = SHOW + "print(torch._C._get_privateuse1_backend_name())"
    assert python(code, TEFL_PROVIDER="sim").endswith("\nprivateuseone")


def test_where_nobody_has_the_device_the_chosen_provider_is_judged(python):
    status = json.loads(python(SHOW, TEFL_PROVIDER="sim", TEFL_DEVICE_NAME="acme"))
    told = [status[key] for key in ("registered", "name", "provider", "abi", "origin", "devices", "defects")]
    assert told == [False, "acme", "sim", "1.1", "TEFL_PROVIDER=sim", None, []]


@pytest.mark.parametrize("environment", [{}, {"TEFL_PROVIDER": "none"}])
def test_without_a_choice_there_is_nobody_and_nothing_is_wrong(python, environment):
    status = json.loads(python(SHOW, **environment))
    assert {key: status[key] for key in NOBODY} == NOBODY
    assert (status["registered"], status["defects"]) == (False, [])


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({"TEFL_PROVIDER": "/nowhere/lib.so"}, "no provider library at '/nowhere/lib.so'"),
        ({"TEFL_PROVIDER": "smi"}, "TEFL_PROVIDER='smi' names no provider"),
        ({"TEFL_PROVIDER": "sim", "TEFL_DEVICE_NAME": "m1"}, "the device name 'm1' does not match [a-z_]+"),
    ],
)
def test_what_keeps_the_choice_from_working_is_told_without_a_claim(python, environment, what):
    status = json.loads(python(SHOW, **environment))
    assert status["name"] == environment.get("TEFL_DEVICE_NAME")
    assert [defect["what"] for defect in status["defects"]] == [what]
    assert all(defect["remedy"] for defect in status["defects"])


def test_installed_providers_are_candidates_with_their_distribution(python, site):
    site.install_provider("acme", SIM)
    status = json.loads(python(SHOW, PYTHONPATH=str(site.folder)))
    assert status["candidates"] == [
        {"name": "cuda", "kind": "built-in", "source": SIM.replace("sim", "cuda")},
        {"name": "sim", "kind": "built-in", "source": SIM},
        {"name": "acme", "kind": "entry point", "source": "acme-provider 1.0"},
    ]
    assert (status["name"], status["origin"]) == (
        "acme",
        "the only installed provider, acme of acme-provider 1.0",
    )
