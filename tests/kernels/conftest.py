"""What tests of kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreted() -> Iterator[Interpreter]:
    """Triton's implementations on the host: ``interpreted("rmsnorm_fwd", x, weight, 1e-5)``."""
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()
