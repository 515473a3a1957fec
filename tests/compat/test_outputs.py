"""Calls in Transformer Engine's signatures that cannot be answered as they ask, and whose error it is."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tefl


@pytest.mark.parametrize("shape", [(4, 5, 16), (16,), (16, 5)], ids=str)
def test_an_output_of_another_shape_is_an_error_even_where_it_broadcasts(manager, shape: tuple) -> None:
    x, w, out = torch.ones(1, 16).expand(5, 16), torch.ones(16), torch.zeros(shape)
    message = rf"rmsnorm_fwd: ln_out has shape {re.escape(str(shape))}, wanted \(5, 16\)"
    with pytest.raises(ValueError, match=message):
        manager.call("rmsnorm_fwd", x, w, 1e-5, out, None, None, 0, False)
    assert not out.any()


def test_an_output_of_another_dtype_than_otype_is_an_error(manager) -> None:
    x, w, out = torch.ones(5, 16), torch.ones(16), torch.zeros(5, 16)
    with pytest.raises(
        TypeError, match=r"rmsnorm_fwd: ln_out is torch.float32, wanted torch.bfloat16, which is otype"
    ):
        manager.call("rmsnorm_fwd", x, w, 1e-5, out, None, torch.bfloat16, 0, False)
    assert manager.call("rmsnorm_fwd", x, w, 1e-5, out, None, torch.float32, 0, False)[0] is out


def test_an_error_of_a_plugin_that_alone_takes_the_call_names_it(manager, add) -> None:
    def failing(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("mine")

    add("rmsnorm_fwd", failing)
    with tefl.with_preference("vendor"), pytest.raises(ZeroDivisionError) as caught:
        manager.call("rmsnorm_fwd", torch.ones(5, 16), torch.ones(16), 1e-5, None, object(), None, 0, False)
    (note,) = caught.value.__notes__
    assert note.startswith("tefl: while rmsnorm_fwd ran vendor.")
