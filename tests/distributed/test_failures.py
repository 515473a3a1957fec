"""What goes wrong between ranks ends in a clear error, on every rank that is left."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import HERE, environment
from scenarios import SIZE

Outcomes = dict[str, list[dict[str, Any] | None]]

ERRORS = ("DistBackendError", "AcceleratorError")
"""What a rank sees that did nothing wrong: at the call, or when it uses the result of work that failed."""


def run(provider: str, out: Path, *arguments: str) -> Outcomes:
    command = [
        sys.executable,
        str(HERE / "scenarios.py"),
        "--provider",
        provider,
        "--out",
        str(out),
        *arguments,
    ]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.fixture(scope="module", params=["gloo", "table"])
def over(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def outcomes(over: str, providers: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run(providers[over], tmp_path_factory.mktemp("scenarios") / "outcomes.json")


def ranks_of(outcomes: Outcomes, name: str, dead: int = 0) -> list[dict[str, Any]]:
    """Return the outcomes of a scenario of all ranks that ended by themselves: all but `dead`, none hung."""
    ranks = [rank for rank in outcomes[f"scenario_{name}"] if rank is not None]
    assert len(ranks) == SIZE - dead, ranks
    return ranks


@pytest.mark.parametrize("name", ["a_rank_is_killed", "a_rank_is_killed_and_the_next_call_comes_later"])
def test_when_a_rank_is_killed_the_others_end_with_an_error_that_names_the_call(
    outcomes: Outcomes, name: str
) -> None:
    for rank in ranks_of(outcomes, name, dead=1):
        assert rank["type"] in ERRORS, rank
        assert "all_reduce" in rank["text"] or "broadcast" in rank["text"], rank
        assert f"of {SIZE}" in rank["text"], rank


def test_when_the_store_goes_with_rank_0_no_call_waits_for_it(outcomes: Outcomes) -> None:
    for rank in ranks_of(outcomes, "rank_0_is_killed_and_the_store_with_it", dead=1):
        assert set(ast.literal_eval(rank["text"])) <= set(ERRORS), rank


def test_a_rank_that_never_starts_is_missed(outcomes: Outcomes) -> None:
    first, second, absent = ranks_of(outcomes, "a_rank_never_starts")
    assert absent["text"] == "not started"
    for number, rank in enumerate((first, second)):
        assert rank["type"] == "DistBackendError", rank
        assert f"rank {number} of {SIZE}" in rank["text"], rank
        assert "join" in rank["text"], rank


def test_a_call_that_a_rank_makes_too_late_runs_into_the_time_out(outcomes: Outcomes) -> None:
    ranks = ranks_of(outcomes, "a_rank_calls_too_late")
    for rank in (ranks[0], ranks[2]):
        assert rank["type"] in ERRORS, rank
        assert "all_reduce" in rank["text"], rank


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("shapes_differ", "all_reduce of 6 x Float, SUM", "all_reduce of 8 x Float, SUM"),
        ("dtypes_differ", "all_reduce of 6 x Float, SUM", "all_reduce of 6 x Int, SUM"),
        ("layouts_differ", "all_reduce of 6 x Float, SUM", "all_reduce of 6 x Float, SUM, strides [1, 2]"),
        (
            "pieces_differ",
            "all_reduce_coalesced of 6 x Float, SUM, in pieces of 4 2",
            "all_reduce_coalesced of 6 x Float, SUM, in pieces of 2 4",
        ),
        ("collectives_differ", "all_reduce of 6 x Float, SUM", "broadcast of 6 x Float, root 0"),
    ],
)
def test_ranks_that_call_different_things_are_told_what(
    outcomes: Outcomes, name: str, theirs: str, ours: str
) -> None:
    ranks = ranks_of(outcomes, name)
    assert ranks[1]["type"] == "DistBackendError", ranks[1]
    assert theirs in ranks[1]["text"], ranks[1]
    assert ours in ranks[1]["text"], ranks[1]
    for rank in (ranks[0], ranks[2]):
        assert rank["type"] in ERRORS, rank


def test_a_call_that_fails_is_told_what_rank_0_calls_though_it_was_known(outcomes: Outcomes) -> None:
    ranks = ranks_of(outcomes, "rank_0_makes_a_new_call_where_another_repeats_one")
    calls = "rank 0 calls broadcast of 6 x Float, root 2 as #2, rank 1 calls broadcast of 6 x Float, root 0"
    assert calls in ranks[1]["text"], ranks[1]


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("size", "all_reduce of 5 x Float, SUM"),
        ("dtype", "all_reduce of 6 x Int, SUM"),
        ("reduction", "all_reduce of 6 x Float, MAX"),
        ("layout", "all_reduce of 6 x Float, SUM, strides [1, 2]"),
    ],
)
def test_a_new_call_where_rank_0_repeats_one_needs_no_time_out(
    outcomes: Outcomes, over: str, what: str, call: str
) -> None:
    ranks = ranks_of(outcomes, f"rank_1_calls_another_{what}")
    if over == "gloo":  # a CCL table may tell by itself, or not
        for rank in ranks:
            assert rank["type"] in ERRORS, rank
            assert "rank 0 calls all_reduce of 6 x Float, SUM" in rank["text"], rank
            assert re.search(f"(this rank|rank 1) calls {re.escape(call)}", rank["text"]), rank


def test_calls_that_were_compared_before_may_be_told_apart_by_a_table(
    outcomes: Outcomes, over: str, request: pytest.FixtureRequest
) -> None:
    ranks = ranks_of(outcomes, "one_rank_repeats_a_call_of_another_dtype")
    # The example does; gloo moves bytes and does not know of what, and a vendor's library may not tell.
    if over == "table" and not request.config.getoption("--ccl"):
        for rank in ranks:
            assert rank["type"] in ERRORS, rank
            assert "SUM of int32" in rank["text"], rank
            assert "SUM of float32" in rank["text"], rank


def test_sparse_tensors_that_do_not_fit_are_told_at_every_call(outcomes: Outcomes) -> None:
    for number, rank in enumerate(ranks_of(outcomes, "sparse_calls_differ_that_are_known")):
        assert rank["type"] == "DistBackendError", rank
        assert f"sizes [{8 if number == 1 else 6}, 4], 2 of them sparse" in rank["text"], rank
        assert "of the same sizes, sparse dimensions and dtype, and the same reduction" in rank["text"], rank


def test_ranks_that_differ_in_their_first_call_need_no_time_out(outcomes: Outcomes) -> None:
    outside, *ranks = ranks_of(outcomes, "two_of_a_group_differ_in_their_first_call")
    assert outside["text"] == "not of the group"
    for rank in ranks:
        assert rank["type"] == "DistBackendError", rank
        assert "all_reduce of 5 x Float, SUM" in rank["text"], rank


@pytest.mark.parametrize(("what", "told"), [("shapes", "all_reduce"), ("sparse_calls", "AVG")])
def test_a_difference_is_found_when_rank_0_comes_late(outcomes: Outcomes, what: str, told: str) -> None:
    ranks = ranks_of(outcomes, f"{what}_differ_and_rank_0_is_late")
    for rank in ranks:
        assert rank["type"] in ERRORS, rank
    assert told in ranks[1]["text"], ranks[1]


def test_rank_0_may_receive_first_what_is_sent_after_a_collective_has_begun(outcomes: Outcomes) -> None:
    """To compare calls with rank 0's must hold up nobody that rank 0 waits for."""
    wanted = [[[3.0] * 5, message] for message in ([7.0] * 3, [7.0] * 3, [14.0] * 3)]
    name = "rank_0_receives_first_what_comes_after_a_collective"
    assert [rank["text"] for rank in ranks_of(outcomes, name)] == [str(result) for result in wanted]


def test_a_collective_that_needs_rank_0_not_ends_without_it(outcomes: Outcomes) -> None:
    first, second, root = ranks_of(outcomes, "rank_0_calls_when_another_rank_has_gone_on")
    assert first["text"] == "[[0.0, 0.0]]", first
    assert second["text"] == "[[1.0, 1.0]]", second
    assert root["text"] == "[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]", root


def test_a_tensor_of_another_kind_of_device_is_refused_and_nobody_hangs(outcomes: Outcomes) -> None:
    ranks = ranks_of(outcomes, "devices_differ")
    assert ranks[1]["type"] == "RuntimeError", ranks[1]
    assert "cpu" in ranks[1]["text"], ranks[1]
    for rank in (ranks[0], ranks[2]):
        assert rank["type"] in ERRORS, rank


def test_each_rank_may_have_a_device_of_its_own(outcomes: Outcomes) -> None:
    for rank in ranks_of(outcomes, "each_rank_has_its_own_device_index"):
        assert rank["text"] == "[3.0, 3.0]", rank


def test_a_second_process_group_is_refused(outcomes: Outcomes) -> None:
    for rank in ranks_of(outcomes, "a_process_group_is_made_twice"):
        assert rank["type"] == "ValueError", rank
        assert "twice" in rank["text"], rank


def test_reductions_that_are_right_pass_the_check_at_start_up(outcomes: Outcomes) -> None:
    for rank in ranks_of(outcomes, "the_check_at_start_up"):
        assert rank["text"] == "sound", rank


def test_an_abort_of_one_rank_is_an_error_of_the_others(outcomes: Outcomes) -> None:
    ranks = ranks_of(outcomes, "a_user_aborts")
    assert ranks[1]["text"] == "aborted", ranks[1]
    for rank in (ranks[0], ranks[2]):
        assert rank["type"] in ERRORS, rank


def test_a_provider_whose_average_is_a_sum_fails_the_check_at_start_up(
    wrong_library: Path, tmp_path: Path
) -> None:
    outcomes = run(str(wrong_library), tmp_path / "outcomes.json", "--only", "check_at_start_up")
    for rank in ranks_of(outcomes, "the_check_at_start_up"):
        assert rank["type"] == "DistBackendError", rank
        assert (
            "all_reduce, AVG of torch.float32 over 3 ranks gave [-10.0, -10.0, -10.0] to rank" in rank["text"]
        )
        assert "right is [-3.33333" in rank["text"]
        assert "TEFL_CCL_CHECK" in rank["text"]
