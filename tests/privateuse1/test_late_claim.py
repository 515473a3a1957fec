"""A device claimed after the process has used autograd: torch's engine does not learn of it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("graph", "warned"), [("(torch.ones(1, requires_grad=True) * 2).backward()", 1), ("", 0)]
)
def test_a_claim_after_a_graph_was_recorded_warns_that_backwards_may_not_reach_the_device(
    python, graph, warned
):
    out = python(
        f"""
import warnings
import torch
from tefl.privateuse1 import *
{graph}
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    register_backend(PrivateUse1Backend(name="maca", provider="sim"))
print(sum("'maca' is claimed after this thread has recorded" in str(w.message) for w in seen))
"""
    )
    assert out == str(warned)
