"""python -m tefl ops"""

from __future__ import annotations

import tefl


def test_every_declared_op_is_listed_with_schema_family_and_implementations(command) -> None:
    result = command("ops", "--json")
    assert result.status == 0
    assert [(op["name"], op["family"], op["schema"]) for op in result.json] == [
        (op.name, op.family, op.schema) for op in tefl.ops()
    ]
    rmsnorm = next(op for op in result.json if op["name"] == "rmsnorm_fwd")
    by_id = {impl["impl_id"]: impl for impl in rmsnorm["implementations"]}
    assert by_id["vendor.cuda"] == {
        "impl_id": "vendor.cuda",
        "kind": "vendor",
        "vendor": "nvidia",
        "priority": 100,
    }
    assert by_id["default.flagos"]["kind"] == "flagos"


def test_the_text_has_a_line_for_each_op_and_each_implementation(command) -> None:
    lines = command("ops").out.splitlines()
    rmsnorm = next(op for op in tefl.ops() if op.name == "rmsnorm_fwd")
    start = lines.index(f"rmsnorm_fwd{rmsnorm.schema}  [norm]")
    assert any("reference.torch" in line and "50" in line for line in lines[start + 1 : start + 6])


def test_one_family_can_be_asked_for(command) -> None:
    assert {op["family"] for op in command("ops", "--family", "norm", "--json").json} == {"norm"}


def test_an_unknown_family_is_a_usage_error_that_lists_the_families(command) -> None:
    result = command("ops", "--family", "nrom")
    assert result.status == 2
    assert "no op is of family 'nrom'; families are" in result.err
    assert "norm" in result.err


def test_an_op_that_is_registered_and_not_declared_is_listed_as_that(command, undeclared: str) -> None:
    entry = command("ops", "--json").json[-1]
    assert (entry["name"], entry["family"], entry["schema"]) == (undeclared, None, None)
    assert [impl["impl_id"] for impl in entry["implementations"]] == ["vendor.acme"]
    lines = command("ops").out.splitlines()
    assert f"{undeclared}  [registered, not declared: for tefl.get_manager().call alone]" in lines
    assert undeclared not in command("ops", "--family", "norm").out
