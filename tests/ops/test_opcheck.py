"""torch.library.opcheck: schemas, autograd registration, fake tensors, AOT dispatch with dynamic shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import tefl

from .samples import GOOD, Sample

LABELS = ("matrix", "five dimensions", "transposed", "no rows", "one element")
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def chosen(op: str) -> list[Sample]:
    """A few forms of input, and every option: opcheck traces each sample several times."""
    return [s for s in GOOD[op](torch.float32) if s.kwargs or s.label.split(", ")[0] in LABELS]


@pytest.mark.parametrize(
    ("op", "sample"),
    [pytest.param(d.name, s, id=f"{d.name}-{s.label}") for d in tefl.ops() for s in chosen(d.name)],
)
def test_opcheck_passes_with_gradients(op: str, sample: Sample) -> None:
    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(differentiable)

    # A backward op refuses to be differentiated, which AOT dispatch would ask of it.
    differentiable = {decl.name: decl.backward is not None for decl in tefl.ops()}[op]
    leaves = sample.mapped(leaf)
    result = opcheck(getattr(torch.ops.tefl, op).default, leaves.args, leaves.kwargs)
    assert result == dict.fromkeys(CHECKS, "SUCCESS")
