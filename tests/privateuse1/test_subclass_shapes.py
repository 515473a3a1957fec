"""Tensor subclasses that say in Python what shape they have: kernels take them at their word, as on CPU."""

from __future__ import annotations

import pytest
import torch
from subclasses import ANSWERS

pytestmark = pytest.mark.usefixtures("maca")


class Half(torch.Tensor):
    """Says that it has its first two elements alone."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return ANSWERS.get(function, NotImplemented)


@pytest.fixture(params=["cpu", "maca"])
def base(request: pytest.FixtureRequest) -> torch.Tensor:
    return torch.arange(4.0, device=request.param)


@pytest.fixture
def half(base: torch.Tensor) -> torch.Tensor:
    return torch.Tensor._make_subclass(Half, base, dispatch_sizes_strides_policy="sizes")


@pytest.mark.parametrize(
    ("operator", "right"),
    [
        (lambda x: x + 1, [1, 2]),
        (lambda x: x.sum(), 1),
        (lambda x: x.flip(0), [1, 0]),
        (lambda x: torch._foreach_add([x], 1)[0], [1, 2]),
        (lambda x: x.nonzero(), [[1]]),
    ],
)
def test_results_are_of_the_shape_that_it_says(half, operator, right):
    with torch._C._DisableTorchDispatch():
        assert operator(half).tolist() == right


def test_writes_stay_within_the_shape_that_it_says(base, half):
    with torch._C._DisableTorchDispatch():
        half.copy_(torch.full((2,), 7.0, dtype=torch.float64, device=base.device))
        half.mul_(2)
    assert base.tolist() == [14, 14, 2, 3]


def test_the_next_call_sees_nothing_of_it(base, half):
    with torch._C._DisableTorchDispatch():
        half.add_(1)
    assert (base + 0).tolist() == [1, 2, 2, 3]
