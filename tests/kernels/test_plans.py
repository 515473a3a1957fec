"""How the CUDA and the Triton norm kernels are laid over a problem keeps to what the kernels rely on."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tefl.kernels.cuda import _plan
from tefl.kernels.triton import _utils

from .host_cuda import ROOT

COLUMNS = st.integers(1, 200_000)
ENTRIES = (ROOT / "csrc" / "kernels" / "entries.cuh").read_text()


def limit(name: str, layout: str) -> int:
    """The most threads of a block that the kernels of a layout are compiled for."""
    choice = re.search(rf"{name}\(KEPT\) (?:\(\(KEPT\) == (\d) \? (\d+) : )?(\d+)", ENTRIES)
    assert choice is not None
    return int(choice[2] if layout == f"n{choice[1]}" else choice[3])


@given(COLUMNS, st.sampled_from([2, 4]), st.booleans(), st.sampled_from(["fwd", "rms", "layer"]))
def test_a_plan_gives_every_column_a_thread(columns: int, itemsize: int, aligned: bool, kind: str) -> None:
    aligned = aligned and columns * itemsize % 16 == 0
    if kind == "fwd":
        plan = _plan.forward_plan(columns, itemsize, aligned)
        most = limit("TEFL_FORWARD_THREADS", plan.layout)
    else:
        plan = _plan.backward_plan(columns, itemsize, aligned, kind == "layer")
        most = limit(f"TEFL_{kind.upper()}NORM_BACKWARD_THREADS", plan.layout)
    threads = plan.threads * plan.rows
    assert threads % 32 == 0
    assert threads <= most
    assert plan.threads <= 32 or plan.rows == 1
    assert plan.threads % 32 == 0 or plan.threads in (1, 2, 4, 8, 16)
    assert (plan.layout == "scalar") == (not aligned)
    if plan.layout.startswith("n"):
        assert plan.kept == int(plan.layout[1:]) * 16 // itemsize
        assert plan.threads * plan.kept >= columns
    else:
        assert plan.kept == 0
        assert kind == "fwd" or plan.rows == 1  # threads of several rows would add to one partial row
    assert plan.shared_bytes <= 48 * 1024


@given(st.integers(1, 10**10), st.integers(1, 40_000), st.integers(1, 200))
def test_blocks_cover_the_rows_and_fill_the_device(rows: int, columns: int, multiprocessors: int) -> None:
    plan = _plan.forward_plan(columns, 2, columns % 8 == 0)
    assert plan.blocks(rows) == min(2**31 - 1, -(-rows // plan.rows))
    plan = _plan.backward_plan(columns, 2, columns % 8 == 0, False)
    blocks = _plan.backward_blocks(plan, rows, multiprocessors)
    assert 1 <= blocks <= plan.blocks(rows)
    assert blocks == plan.blocks(rows) or blocks >= multiprocessors


@pytest.mark.parametrize("columns", [3584, 5120, 7168])
def test_rows_between_powers_of_two_are_not_padded(columns: int) -> None:
    plan = _plan.forward_plan(columns, 2, True)
    assert plan.threads * plan.kept == columns


@given(COLUMNS)
def test_a_tile_holds_a_row_or_loops(columns: int) -> None:
    for tile in (_utils.norm_forward_tile(columns), _utils.norm_backward_tile(columns)):
        assert tile.columns.bit_count() == tile.rows.bit_count() == tile.num_warps.bit_count() == 1
        assert tile.num_warps <= 32
        assert tile.loops == (tile.columns < columns)


@given(st.integers(1, 10**9), st.integers(1, 8192), st.integers(1, 200))
def test_programs_of_a_backward_have_a_row_each(rows: int, columns: int, multiprocessors: int) -> None:
    tile = _utils.norm_backward_tile(columns)
    programs = _utils.norm_programs(rows, tile, multiprocessors)
    assert 1 <= programs <= _utils.ceil_div(rows, tile.rows)
