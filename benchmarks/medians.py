"""Where the median of what scatters lies."""

from __future__ import annotations

import math


def interval(values: list[float]) -> list[float]:
    """Return between which of `values` their median lies with 95% confidence, however they scatter.

    The bounds are order statistics; their ranks come from the normal approximation of the sign test.
    """
    ranked = sorted(values)
    reach = 0.98 * math.sqrt(len(ranked))
    middle = (len(ranked) - 1) / 2
    return [
        ranked[max(0, math.floor(middle - reach))],
        ranked[min(len(ranked) - 1, math.ceil(middle + reach))],
    ]
