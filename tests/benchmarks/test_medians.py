"""benchmarks/medians.py: where it says that a median lies."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from medians import interval

# Of how many values, which ones bound their median with 95% confidence: W. J. Conover, Practical
# Nonparametric Statistics, by the binomial distribution.
BOUNDS = {20: (6, 15), 50: (18, 33), 100: (40, 61)}


@pytest.mark.parametrize("count", BOUNDS)
def test_the_bounds_of_a_median_are_those_of_the_sign_test(count: int) -> None:
    values = [float(rank) for rank in range(1, count + 1)]
    random.Random(count).shuffle(values)
    assert tuple(interval(values)) == BOUNDS[count]


def test_few_values_bound_their_median_by_all_of_them() -> None:
    assert interval([3.0, 1.0, 2.0]) == [1.0, 3.0]
