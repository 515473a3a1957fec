"""Collectives are in stream order: over gloo and over a CCL table, in two ranks whose streams are held up."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from ranks import HERE, ROOT

CHECKS = re.findall(r"^def (check_\w+)", (HERE / "checks_order.py").read_text(), re.M)

Failures = dict[str, list[str]]


@pytest.fixture(scope="module", params=["gloo", "table"])
def failures(
    request: pytest.FixtureRequest,
    world: Callable[..., Failures],
    providers: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Failures:
    library = tmp_path_factory.mktemp("kernels") / "sim_kernels.so"
    source = ROOT / "tests" / "privateuse1" / "sim_kernels.c"
    includes = [f"-I{ROOT / 'csrc' / 'include'}", f"-I{ROOT / 'csrc' / 'providers' / 'sim'}"]
    subprocess.run(["gcc", "-shared", "-fPIC", *includes, "-o", str(library), str(source)], check=True)
    return world("checks_order", providers[request.param], 2, SIM_KERNELS=str(library))


@pytest.mark.parametrize("check", CHECKS)
def test_in_two_ranks(failures: Failures, check: str) -> None:
    assert "\n".join(failures[check]) == ""
