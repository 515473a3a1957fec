"""An op of torch.ops.tefl for the tests of the compiled router."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tefl
from tefl.dispatch import OpDecl

SCHEMA = (
    "(Tensor input, Tensor? bias=None, float scale=2.0, *, ScalarType? out_dtype=None) -> (Tensor, Tensor)"
)
numbers = itertools.count()


def scaled(input: Tensor, bias: Tensor | None, scale: float, *, out_dtype: torch.dtype | None) -> Any:
    """The definition."""
    out = input * scale if bias is None else input * scale + bias
    return out.to(out_dtype or input.dtype), out.float().sum(-1)


def fake(input: Tensor, bias: Any = None, scale: float = 2.0, *, out_dtype: Any = None) -> Any:
    return input.new_empty(input.shape, dtype=out_dtype or input.dtype), input.new_empty(
        input.shape[:-1], dtype=torch.float32
    )


class Op:
    """An op of torch.ops.tefl, and how often its check was asked: once for each call that Python decides."""

    def __init__(self) -> None:
        self.name = f"test_native_{next(numbers)}"
        self.checks = 0
        tefl.ops.register(OpDecl(self.name, "test", SCHEMA, fake, scaled, self.check))
        self.call = getattr(torch.ops.tefl, self.name)

    def check(self, input: Tensor, bias: Any = None, scale: float = 2.0, *, out_dtype: Any = None) -> None:
        self.checks += 1
        if scale < 0 or input.shape[-1] == 13:
            raise ValueError(f"{self.name}: scale is {scale}, shape {tuple(input.shape)}")

    def add(self, impl_id: str, fn: Callable[..., Any], **fields: Any) -> tefl.OpImpl:
        """Register an implementation: "vendor.acme" is acme's."""
        head, _, name = impl_id.partition(".")
        kind = {"vendor": "vendor", "reference": "reference"}.get(head, "flagos")
        impl = tefl.OpImpl(self.name, impl_id, kind, fn, vendor=name if kind == "vendor" else None, **fields)
        tefl.get_registry().register_impl(impl)
        return impl
