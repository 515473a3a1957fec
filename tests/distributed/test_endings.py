"""Groups over a CCL table that end, fail or have a store that falls silent: nothing hangs, in two ranks."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import HERE, ROOT

CHECKS = re.findall(r"^def (check_\w+)", (HERE / "checks_endings.py").read_text(), re.M)

Failures = dict[str, list[str]]


@pytest.fixture(scope="module")
def failures(
    world: Callable[..., Failures], maca_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Failures:
    library = str(tmp_path_factory.mktemp("faulty") / "libfaulty.so")
    flags = [
        "-shared",
        "-fPIC",
        f"-I{ROOT / 'csrc' / 'include'}",
        f"-DLIBRARY={json.dumps(str(maca_library))}",
    ]
    subprocess.run(["gcc", *flags, "-o", library, str(HERE / "faulty_provider.c"), "-ldl"], check=True)
    return world("checks_endings", library, 2, FAULTY=library)


@pytest.mark.parametrize("check", CHECKS)
def test_in_two_ranks(failures: Failures, check: str) -> None:
    assert "\n".join(failures[check]) == ""
