"""python -m tefl explain"""

from __future__ import annotations

import pytest
import torch

import tefl
from tefl.cli import _arguments
from tefl.dispatch import OpDecl


def test_the_text_is_that_of_the_python_function(command) -> None:
    result = command("explain", "rmsnorm_fwd", "--shape", "4,8")
    assert result.status == 0
    assert result.out.strip() == str(tefl.explain("rmsnorm_fwd", torch.zeros(4, 8), torch.zeros(8)))


def test_the_json_holds_call_winner_and_every_candidate_with_its_reason(command) -> None:
    result = command("explain", "rmsnorm_fwd", "--shape", "4,8", "--dtype", "bfloat16", "--json").json
    assert result["op"] == "rmsnorm_fwd"
    assert result["winner"] == "reference.torch"
    assert result["call"]["device_type"] == "cpu"
    assert result["call"]["dtypes"] == ["torch.bfloat16", "torch.bfloat16"]
    reasons = {c["impl_id"]: (c["accepted"], c["reason"]) for c in result["candidates"]}
    assert reasons["reference.torch"][0] is True
    assert reasons["vendor.cuda"][0] is False
    assert "NVIDIA" in reasons["vendor.cuda"][1]


def test_the_variables_of_the_environment_count(command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TE_FL_PER_OP", "rmsnorm_fwd=vendor:nvidia")
    tefl.reset_global_policy()
    result = command("explain", "rmsnorm_fwd", "--json")
    monkeypatch.undo()
    tefl.reset_global_policy()
    assert (result.status, result.json["winner"]) == (1, None)
    reference = next(c for c in result.json["candidates"] if c["impl_id"] == "reference.torch")
    assert reference["reason"] == "not in the order given for this op, vendor:nvidia"


@pytest.mark.parametrize("op", [op.name for op in tefl.ops()])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_shape_is_enough_for_every_op(command, op: str, dtype: str) -> None:
    assert command("explain", op, "--shape", "2,3,8", "--dtype", dtype, "--json").json["winner"]


def test_no_shape_is_needed(command) -> None:
    assert command("explain", "rmsnorm_fwd").status == 0


def test_other_arguments_and_named_shapes_are_passed_on(command) -> None:
    given = ["--shape", "4,8", "--shape", "weight=8", "--arg", "eps=1e-6", "--arg", "out_dtype=float16"]
    assert command("explain", "rmsnorm_fwd", *given).status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["rmsnorm_fdw"],
            "op 'rmsnorm_fdw' is neither declared nor registered; the nearest known name is 'rmsnorm_fwd'",
        ),
        (["rmsnorm_fwd", "--shape", "4x8"], "'4x8' is no shape"),
        (["rmsnorm_fwd", "--shape=-1,8"], "negative size"),
        (["rmsnorm_fwd", "--shape", "99999999999,99999999"], "Storage size calculation overflowed"),
        (["rmsnorm_fwd", "--shape", "wieght=8"], "has no argument 'wieght'"),
        (
            ["rmsnorm_fwd", "--shape", "4,8", "--shape", "8", "--shape", "8"],
            "3 shapes without a name for 2 tensors",
        ),
        (["rmsnorm_fwd", "--shape", "4,8", "--shape", "weight=7"], "weight"),
        (["rmsnorm_fwd", "--arg", "eps=-1.0"], "eps"),
        (["rmsnorm_fwd", "--arg", "eps=small"], "'eps=small' cannot be read"),
        (["rmsnorm_fwd", "--dtype", "bf17"], "'bf17' is no dtype of torch"),
        (["rmsnorm_fwd", "--device", "macca"], "'macca' is no device here"),
        ([], "the following arguments are required: op"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error_that_says_what(
    command, arguments: list[str], message: str
) -> None:
    result = command("explain", *arguments)
    assert result.status == 2
    assert message in result.err


def test_an_op_that_needs_a_number_says_which() -> None:
    decl = OpDecl(
        "op", "test", "(Tensor input, float p) -> Tensor", lambda input, p: input, lambda input, p: input
    )
    with pytest.raises(ValueError, match="needs argument 'p'"):
        _arguments.example_arguments(decl, [], torch.float32, torch.device("cpu"), {})
    made = _arguments.example_arguments(decl, [], torch.float32, torch.device("cpu"), {"p": 0.5})
    assert made["input"].shape == _arguments.DEFAULT_SHAPE


def test_an_op_that_is_registered_and_not_declared_is_explained_as_the_function_does(
    command, undeclared: str
) -> None:
    assert command("explain", undeclared).out.strip() == str(tefl.explain(undeclared))
    odd = command("explain", undeclared, "--shape", "3,4", "--arg", "start=1")
    assert odd.status == 1
    assert "rows must be even" in odd.out
    assert command("explain", undeclared, "--shape", "x=2,4", "--json").json["winner"] == "vendor.acme"


def test_that_results_are_compared_is_said(command, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "TEFL_CHECK=1: every result is compared with the fake function's promise and with the reference"
    assert said not in command("explain", "rmsnorm_fwd").out
    monkeypatch.setenv("TEFL_CHECK", "1")
    tefl.reset_global_policy()
    assert said in command("explain", "rmsnorm_fwd").out
    assert command("explain", "rmsnorm_fwd", "--json").json["verified"] is True
    monkeypatch.undo()
    tefl.reset_global_policy()
