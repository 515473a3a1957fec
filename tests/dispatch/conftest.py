"""A fresh registry and manager, ops that only tests have, and the lines that were logged."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tefl
from tefl.dispatch import OpDecl, declare

sys.path.insert(0, str(Path(__file__).parent))  # for the helper modules of this folder

from native_op import Op

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _unset_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of ours is set, and the policy that a test makes global goes with it."""
    for name in list(os.environ):
        if name.startswith(("TE_FL_", "TEFL_")):
            monkeypatch.delenv(name)
    tefl.reset_global_policy()
    yield
    monkeypatch.undo()
    tefl.reset_global_policy()


@pytest.fixture
def set_env(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set environment variables and have the policy read them."""

    def set_env(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        tefl.reset_global_policy()

    return set_env


@pytest.fixture
def registry() -> tefl.OpRegistry:
    return tefl.OpRegistry()


@pytest.fixture
def manager(registry: tefl.OpRegistry) -> tefl.OpManager:
    """A manager of its own over the fixture ``registry``."""
    return tefl.OpManager(registry)


@pytest.fixture
def op() -> str:
    """The name of an op that nobody declares and that no other test uses."""
    return f"undeclared_{next(_numbers)}"


@pytest.fixture
def declared() -> Iterator[Callable[..., str]]:
    """Declare an op for the length of a test; returns its name. ``declared(schema, fake=, check=)``."""
    undo: list[Callable[[], None]] = []

    def declare_op(schema: str, fake: Any = None, check: Any = None) -> str:
        name = f"declared_{next(_numbers)}"
        undo.append(declare(OpDecl(name, "test", schema, fake or torch.empty_like, torch.clone, check)))
        return name

    yield declare_op
    for take_back in undo:
        take_back()


@pytest.fixture
def register_op() -> Iterator[Callable[..., Any]]:
    """Register an op of ``torch.ops.tefl`` that one function serves; returns it, named ``op.__name__``.

    ``register_op(schema, fake, fn, impl_id=, check=, backward=)``: the function is taken away after the test.
    """
    registry, added = tefl.get_registry(), []

    def register_op(
        schema: str, fake: Any, fn: Any, impl_id: str = "vendor.acme", check: Any = None, backward: Any = None
    ) -> Any:
        name = f"test_registered_{next(_numbers)}"
        tefl.ops.register(OpDecl(name, "test", schema, fake, fn, check, backward))
        registry.register_impl(implementation_of(name, impl_id, fn))
        added.append((impl_id, name))
        return getattr(torch.ops.tefl, name)

    yield register_op
    for impl_id, name in added:
        registry.unregister(impl_id, name)


def implementation_of(op: str, impl_id: str, fn: Callable[..., Any], **fields: Any) -> tefl.OpImpl:
    """Return an implementation whose kind and vendor follow from the impl_id: "vendor.acme" is acme's."""
    head, _, name = impl_id.partition(".")
    kind = {"vendor": "vendor", "reference": "reference"}.get(head, "flagos")
    fields.setdefault("vendor", name if kind == "vendor" else None)
    return tefl.OpImpl(op, impl_id, tefl.BackendImplKind(kind), fn, **fields)


@pytest.fixture
def add(registry: tefl.OpRegistry, op: str) -> Callable[..., tefl.OpImpl]:
    """Register an implementation. Its kind and vendor follow from the impl_id: "vendor.acme" is acme's."""

    def add(
        impl_id: str, fn: Callable[..., Any] | None = None, *, to: str = op, **fields: Any
    ) -> tefl.OpImpl:
        impl = implementation_of(to, impl_id, fn or (lambda *args, **kwargs: impl_id), **fields)
        registry.register_impl(impl)
        return impl

    return add


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """The records that the logger TE-FL gets during the test."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("TE-FL")
    log.addHandler(handler)
    yield records
    log.removeHandler(handler)


@pytest.fixture
def warnings_in(logged: list[logging.LogRecord]) -> Callable[[str], list[str]]:
    """The warnings logged so far that contain a text."""

    def warnings_in(text: str) -> list[str]:
        messages = [r.getMessage() for r in logged if r.levelno == logging.WARNING]
        return [message for message in messages if text in message]

    return warnings_in


class Implementation:
    """A function that counts its calls and raises what it is told to."""

    def __init__(self, answer: Any = "answer", error: BaseException | None = None) -> None:
        self.answer, self.error, self.calls = answer, error, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        self.arguments = args, kwargs
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def implementation() -> type[Implementation]:
    return Implementation


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(2, 3)


@pytest.fixture
def native() -> Iterator[Op]:
    op = Op()
    yield op
    registry = tefl.get_registry()
    for impl in registry.implementations(op.name):
        registry.unregister(impl.impl_id, op.name)


@pytest.fixture(scope="session")
def unbuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as it is before a build."""
    folder = tmp_path_factory.mktemp("unbuilt")
    ignore = shutil.ignore_patterns("*.so", "_build.json", "fatbin", "__pycache__")
    shutil.copytree(Path(tefl.__file__).parent, folder / "tefl", ignore=ignore)
    return folder
