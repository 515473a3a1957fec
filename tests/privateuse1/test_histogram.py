"""torch.histc: integers too, which the CPU refuses and CUDA counts."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("maca")

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def counted(values: list[int], bins: int, low: int, high: int) -> list[int]:
    """Return how many values fall into each of `bins` equal parts of [low, high], in exact arithmetic."""
    counts = [0] * bins
    for value in values:
        if low <= value <= high:
            counts[min((value - low) * bins // (high - low), bins - 1)] += 1
    return counts


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(("bins", "low", "high"), [(4, 0, 3), (49, 0, 49), (7, 2, 90), (100, 0, 99)])
def test_integers_are_counted_exactly_in_their_own_dtype(dtype, bins, low, high):
    values = [*range(100), 3, 3, 49, 98]
    x = torch.tensor(values, dtype=dtype, device="maca:1").reshape(2, -1)
    result = torch.histc(x, bins, low, high)
    assert (result.dtype, result.device) == (dtype, x.device)
    assert result.tolist() == counted(values, bins, low, high)


def test_without_a_range_the_values_give_it():
    values = [5, 9, 7, 7]
    assert torch.histc(torch.tensor(values, device="maca"), 4).tolist() == counted(values, 4, 5, 9)
    assert torch.histc(torch.tensor([6, 6], device="maca"), 2).tolist() == counted([6, 6], 2, 5, 7)


def test_nothing_is_counted_as_nothing():
    empty = torch.empty(0, dtype=torch.int64, device="maca")
    assert torch.histc(empty, 3, 0, 2).tolist() == torch.histc(empty, 3).tolist() == [0, 0, 0]


def test_fractions_are_counted_as_on_the_cpu():
    x = torch.randn(1000)
    for bins, low, high in ((10, 0, 0), (7, -1, 1)):
        got, wanted = torch.histc(x.to("maca:1"), bins, low, high), torch.histc(x, bins, low, high)
        assert got.device == torch.device("maca:1")
        torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0)


@pytest.mark.parametrize(("arguments", "told"), [((0,), "bins"), ((3, 2, 1), "max must be larger than min")])
def test_wrong_arguments_are_refused(arguments, told):
    with pytest.raises(RuntimeError, match=told):
        torch.histc(torch.tensor([1, 2], device="maca"), *arguments)
