"""The log: its form, its level, its lines, and whom it leaves alone."""

from __future__ import annotations

import logging
import re

import torch

import tefl
from tefl import OpManager

CALL_TWICE = """
    import torch, tefl
    def my_rmsnorm(input, weight, eps=1e-5, **kwargs):
        variance = input.pow(2).mean(-1, keepdim=True)
        return input * torch.rsqrt(variance + eps) * weight, torch.rsqrt(variance + eps).squeeze(-1)
    registry = tefl.OpRegistry()
    registry.register_impl(tefl.OpImpl("rmsnorm_fwd", "vendor.mybackend", tefl.BackendImplKind.VENDOR,
                                       my_rmsnorm, vendor="mybackend", priority=200))
    manager = tefl.OpManager(registry)
    for _ in range(2):
        manager.call("rmsnorm_fwd", torch.ones(2, 4), torch.ones(4))
"""


def test_the_lines_have_the_documented_form_and_go_to_stderr(fresh_python) -> None:
    done = fresh_python(CALL_TWICE, TE_FL_PREFER="vendor")
    registered, using = done.stderr.splitlines()
    match = re.fullmatch(r"\[TE-FL manager\.py:\d+ INFO\] Registered impl_ids: (\[.*\])", registered)
    assert match, registered
    names = [name.strip("' ") for name in match[1][1:-1].split(",")]
    assert names == sorted(set(names))
    assert {"default.flagos", "reference.torch", "vendor.cuda", "vendor.mybackend"} <= set(names)
    assert re.fullmatch(
        r"\[TE-FL manager\.py:\d+ INFO\] Op 'rmsnorm_fwd' using 'vendor\.mybackend' "
        r"\(kind=vendor, vendor=mybackend\)",
        using,
    )
    assert done.stdout == ""


def test_nothing_is_written_on_import(fresh_python) -> None:
    done = fresh_python("import tefl", TEFL_LOG_LEVEL="DEBUG", TE_FL_UNKNOWN="1")
    assert (done.stdout, done.stderr) == ("", "")


def test_the_level_is_the_variables(fresh_python) -> None:
    assert fresh_python(CALL_TWICE, TE_FL_PREFER="vendor", TEFL_LOG_LEVEL="WARNING").stderr == ""
    debug = fresh_python(CALL_TWICE, TE_FL_PREFER="vendor", TEFL_LOG_LEVEL="DEBUG").stderr
    assert re.search(r"\[TE-FL \w+\.py:\d+ DEBUG\] Op 'rmsnorm_fwd' on cpu \(float32, float32\)", debug)


def test_a_level_that_is_none_is_an_error_at_first_use(fresh_python) -> None:
    done = fresh_python(CALL_TWICE, TEFL_LOG_LEVEL="LOUD", fails=True)
    assert "TEFL_LOG_LEVEL='LOUD'" in done.stderr.splitlines()[-1]


def test_a_level_that_the_application_set_stays(fresh_python) -> None:
    code = "import logging; logging.getLogger('TE-FL').setLevel('ERROR')" + CALL_TWICE.replace("\n    ", "\n")
    assert fresh_python(code, TE_FL_PREFER="vendor").stderr == ""


def test_a_handler_of_the_application_takes_the_records(fresh_python) -> None:
    mine = """
import logging, sys
handler = logging.StreamHandler(sys.stdout)
logging.getLogger({name!r}).addHandler(handler)
"""
    for name in ("TE-FL", None):
        code = mine.format(name=name) + CALL_TWICE.replace("\n    ", "\n")
        done = fresh_python(code, TE_FL_PREFER="vendor")
        assert done.stderr == ""
        assert "Op 'rmsnorm_fwd' using 'vendor.mybackend' (kind=vendor, vendor=mybackend)" in done.stdout


def using(logged: list[logging.LogRecord]) -> list[str]:
    lines = [record.getMessage() for record in logged]
    return [match[1] for line in lines if (match := re.match(r"Op .* using '(\S+)'", line))]


def test_an_implementation_is_named_once_per_change(
    manager: OpManager, registry, add, op: str, x: torch.Tensor, logged: list
) -> None:
    add("default.flagos")
    add("reference.torch")
    for policy in ("flagos", "flagos", "reference", "flagos"):
        tefl.set_global_policy(tefl.SelectionPolicy(prefer=policy))
        manager.call(op, x)
        manager.call(op, x)
    assert using(logged) == ["default.flagos", "reference.torch", "default.flagos"]
    registry.unregister("reference.torch", op)
    manager.call(op, x)
    assert len(using(logged)) == 3


def test_devices_are_named_apart(manager: OpManager, add, op: str, x: torch.Tensor, logged: list) -> None:
    add("default.flagos", devices="meta")
    add("reference.torch")
    for _ in range(3):
        manager.call(op, x)
        manager.call(op, x.to("meta"))
    assert using(logged) == ["reference.torch", "default.flagos"]


def test_calls_that_alternate_by_their_arguments_do_not_fill_the_log(
    manager: OpManager, add, op: str, x: torch.Tensor, logged: list
) -> None:
    add("default.flagos", supports=lambda x: len(x) > 1)
    add("reference.torch")
    for _ in range(5):
        manager.call(op, x)
        manager.call(op, x[:1])
    assert using(logged) == ["default.flagos", "reference.torch"]
