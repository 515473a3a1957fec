"""Running the command line in this process, and in one of its own."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import tefl
from tefl.cli import main


@dataclass
class Result:
    """What a subcommand came to."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _unset_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if re.match("TE_?FL_", name)]:
        monkeypatch.delenv(name)
    tefl.reset_global_policy()


@pytest.fixture
def undeclared() -> Iterator[str]:
    """An op that is registered for CPU tensors with even rows, and not declared."""
    impl = tefl.OpImpl(
        "fused_rope_forward", "vendor.acme", "vendor", print, vendor="acme", devices="cpu",
        supports=lambda x, start=0: x.shape[0] % 2 == 0 or "rows must be even",
    )  # fmt: skip
    tefl.get_registry().register_impl(impl)
    yield impl.op_name
    tefl.get_registry().unregister(impl.impl_id, impl.op_name)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run a subcommand here; returns status and output, argparse's exits included."""

    def command(*arguments: str) -> Result:
        try:
            status = main(arguments)
        except SystemExit as error:
            status = int(error.code or 0)
        written = capsys.readouterr()
        return Result(status, written.out, written.err)

    return command
