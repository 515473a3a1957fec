"""What the kernels take for the rows of a tensor are its rows, copied only where they must be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tefl.kernels._buffer import Buffer
from tefl.kernels._rows import rows_of

from ..ops.samples.sample import awkward


def seen_by_a_kernel(x: Tensor) -> tuple[Tensor, Tensor]:
    """The tensor that is handed to a kernel, and what the kernel reads there."""
    rows, stride = rows_of(x)
    tensor = rows.make(x.device) if isinstance(rows, Buffer) else rows
    columns = x.shape[-1]
    return tensor, tensor.as_strided((x.numel() // columns, columns), (stride, 1), tensor.storage_offset())


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.integers(1, 3), min_size=4, max_size=4),
    st.randoms(use_true_random=False),
)
def test_rows_of_permuted_and_sliced_tensors(shape: list[int], steps: list[int], random: object) -> None:
    base = torch.arange(10_000.0)[: torch.Size([n * s for n, s in zip(shape, steps, strict=False)]).numel()]
    x = base.view([n * s for n, s in zip(shape, steps, strict=False)])
    for dim, step in enumerate(steps[: len(shape)]):
        x = x[(slice(None),) * dim + (slice(None, None, step),)]
    order = list(range(len(shape)))
    random.shuffle(order)  # type: ignore[attr-defined]
    x = x.permute(order)
    _, rows = seen_by_a_kernel(x)
    assert torch.equal(rows, x.reshape(-1, x.shape[-1]))


@pytest.mark.parametrize("label", [label for label, _ in awkward(torch.float32)])
def test_rows_of_awkward_tensors(label: str) -> None:
    x = dict(awkward(torch.float32))[label]
    _, rows = seen_by_a_kernel(x)
    assert torch.equal(rows, x.reshape(-1, x.shape[-1]))


@pytest.mark.parametrize(
    ("x", "copied"),
    [
        (torch.ones(4, 5, 6), False),
        (torch.ones(4, 5, 8)[..., :6], False),
        (torch.ones(1, 6).expand(4, 6), False),
        (torch.ones(4, 5, 6)[:, 2], False),
        (torch.ones(4, 5, 6)[:, :3], True),
        (torch.ones(6, 4).t(), True),
        (torch.ones(4, 12)[:, ::2], True),
    ],
    ids=[
        "dense",
        "cut columns",
        "expanded rows",
        "one of a dimension",
        "uneven",
        "transposed",
        "every other",
    ],
)
def test_only_rows_that_are_not_dense_or_evenly_spaced_are_copied(x: Tensor, copied: bool) -> None:
    rows, _ = rows_of(x)
    assert isinstance(rows, Buffer) == copied
    assert copied or rows is x
