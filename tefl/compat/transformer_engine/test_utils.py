"""The helpers that tests of TE-FL plugins use: backends by name, tensors, and a class that counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tefl._env import KINDS
from tefl.dispatch import DispatchError, SelectionPolicy, policy_context

from .manager import get_default_manager

__all__ = [
    "TestCase",
    "generate_random_tensor",
    "generate_test_shapes",
    "get_available_backends",
    "get_backend",
]


def get_available_backends() -> list[str]:
    """Whose implementations there are: "flagos", "reference" and vendors' names, sorted."""
    manager = get_default_manager()
    manager.ensure_initialized()
    impls = [
        impl for op in manager.tefl.registry.op_names() for impl in manager.tefl.registry.implementations(op)
    ]
    return sorted({impl.vendor or str(impl.kind) for impl in impls})


class _Backend:
    """One backend's ops; each raises NotImplementedError where it has no implementation that fits."""

    def __init__(self, name: str) -> None:
        self._token = name if name in KINDS or ":" in name else f"vendor:{name}"

    def __getattr__(self, op_name: str) -> Callable[..., Any]:
        if op_name.startswith("_"):
            raise AttributeError(op_name)

        def call(*args: Any, **kwargs: Any) -> Any:
            with policy_context(SelectionPolicy(strict=True, per_op_order={op_name: [self._token]})):
                try:
                    return get_default_manager().call(op_name, *args, **kwargs)
                except DispatchError as error:
                    raise NotImplementedError(str(error)) from error

        return call


def get_backend(name: str) -> Any:
    """A backend by its name or by a token of an order: its ops are methods, in Transformer Engine's form."""
    return _Backend(name)


def generate_random_tensor(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    requires_grad: bool = False,
) -> torch.Tensor:
    """Normally distributed numbers."""
    return torch.randn(*shape, device=device).to(dtype).requires_grad_(requires_grad)


def generate_test_shapes() -> list[tuple[int, ...]]:
    """A few shapes of two and three dimensions."""
    return [(2, 8), (4, 16, 32), (8, 128), (2, 64, 256)]


class TestCase:
    """Counts what passed, failed and was skipped."""

    __test__ = False  # for pytest, which would take it for a class of tests

    def __init__(self, name: str, description: str = "") -> None:
        self.name, self.description = name, description
        self.passed = self.failed = self.skipped = 0

    def assert_close(
        self,
        actual: torch.Tensor,
        expected: torch.Tensor,
        rtol: float = 1e-5,
        atol: float = 1e-8,
        msg: str = "",
    ) -> None:
        """AssertionError with ``msg`` where the two differ by more."""
        torch.testing.assert_close(
            actual, expected, rtol=rtol, atol=atol, msg=(lambda text: f"{msg}\n{text}") if msg else None
        )
        self.passed += 1

    def report(self) -> bool:
        """Print the counts; whether nothing failed."""
        print(f"{self.name}: {self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return self.failed == 0
