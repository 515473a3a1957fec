"""Who is claimed: a pure decision over TEFL_PROVIDER and what is installed."""

from __future__ import annotations

import pytest

from tefl.privateuse1.backend import PrivateUse1Backend
from tefl.privateuse1.discovery import (
    Candidate,
    built_in_candidates,
    built_in_library,
    choose,
    names_an_installed_one,
)


def candidate(name: str, kind: str = "entry point", source: str = "") -> Candidate:
    return Candidate(name, kind, source or f"{name}-provider 1.0", lambda: PrivateUse1Backend(name, "x.so"))


SIM = candidate("sim", "built-in", "tefl_sim.so")
MACA, ACME = candidate("maca"), candidate("acme")


def test_nobody_is_claimed_where_nothing_is_installed_or_set():
    chosen = choose(None, [SIM], [])
    assert (chosen.candidate, chosen.defect, chosen.ambiguous) == (None, None, False)


def test_the_only_installed_one_is_claimed_but_never_a_built_in_one():
    assert choose(None, [SIM], [MACA]).candidate is MACA


def test_of_several_none_is_claimed_and_the_reason_names_them():
    chosen = choose(None, [SIM], [MACA, ACME])
    assert chosen.candidate is None
    assert chosen.ambiguous
    assert "maca (maca-provider 1.0), acme (acme-provider 1.0)" in chosen.reason


@pytest.mark.parametrize(("name", "expected"), [("sim", SIM), ("maca", MACA), ("acme", ACME)])
def test_a_name_chooses_among_built_in_and_installed_ones(name, expected):
    chosen = choose(name, [SIM], [MACA, ACME])
    assert chosen.candidate is expected
    assert chosen.reason == f"TEFL_PROVIDER={name}"


def test_none_beats_the_only_installed_one():
    chosen = choose("none", [SIM], [MACA])
    assert (chosen.candidate, chosen.reason, chosen.defect) == (None, "TEFL_PROVIDER=none", None)


@pytest.mark.parametrize("path", ["/opt/acme/libacme.so", "./libacme.so", "libacme.so", "build/acme"])
def test_what_looks_like_a_path_is_one(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    chosen = choose(path, [SIM], [])
    assert chosen.candidate.kind == "path"
    assert str(chosen.candidate.load().provider) == str((tmp_path / path).resolve())


def test_an_unknown_name_is_a_defect_with_the_nearest_one():
    chosen = choose("mcca", [SIM], [MACA])
    assert chosen.candidate is None
    assert chosen.defect.what == "TEFL_PROVIDER='mcca' names no provider"
    assert "'maca'" in chosen.defect.remedy


def test_two_providers_of_one_name_are_a_defect_that_names_both():
    chosen = choose("maca", [SIM], [MACA, candidate("maca", source="other 2.0")])
    assert chosen.candidate is None
    assert chosen.defect.what.endswith("maca-provider 1.0 and other 2.0")


def test_the_built_in_providers_are_the_libraries_that_were_built():
    assert "sim" in [found.name for found in built_in_candidates()]
    assert built_in_library("sim").name == "tefl_sim.so"
    assert built_in_library("no_such") is None


@pytest.mark.parametrize(
    ("setting", "needed"),
    [("maca", True), ("sim", False), ("none", False), ("./x.so", False), ("x.so", False)],
)
def test_installed_packages_are_looked_for_only_where_one_is_meant(setting, needed):
    assert names_an_installed_one(setting, [SIM]) is needed
