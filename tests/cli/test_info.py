"""python -m tefl info"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch

from tefl import _env


def test_it_shows_versions_build_device_plugins_and_variables(command) -> None:
    info = command("info", "--json").json
    assert info["versions"]["torch"] == torch.__version__
    assert info["versions"]["python"] == platform.python_version()
    assert info["versions"]["numpy"]
    assert set(info["device"]) >= {
        "registered",
        "name",
        "provider",
        "path",
        "abi",
        "alias",
        "defects",
        "candidates",
    }
    assert isinstance(info["plugins"], list)
    assert [variable["name"] for variable in info["variables"]] == list(_env.VARIABLES)


def test_the_text_has_a_section_for_each(command) -> None:
    lines = command("info").out.splitlines()
    assert [line for line in lines if not line.startswith(" ")][:5] == [
        "versions",
        "build",
        "device",
        "plugins",
        "variables",
    ]


def test_variables_are_shown_with_value_and_source(fresh_python) -> None:
    done = fresh_python(args=["-m", "tefl", "info", "--json"], TE_FL_PREFER="vendor", TE_FL_PREFERR="x")
    info = json.loads(done.stdout)
    settings = {variable["name"]: variable for variable in info["variables"]}
    assert (settings["TE_FL_PREFER"]["value"], settings["TE_FL_PREFER"]["source"]) == (
        "vendor",
        "environment",
    )
    assert settings["TE_FL_STRICT"]["source"] == "default"
    assert info["unknown_variables"] == {"TE_FL_PREFERR": "the nearest known name is 'TE_FL_PREFER'"}
    assert info["problems"] == []


def test_a_variable_that_cannot_be_read_is_a_problem_and_everything_else_is_still_shown(fresh_python) -> None:
    done = fresh_python(args=["-m", "tefl", "info", "--json"], TE_FL_STRICT="maybe", fails=True)
    assert done.returncode == 1
    info = json.loads(done.stdout)
    assert info["problems"] == ["TE_FL_STRICT='maybe'; accepted: 1 or 0"]
    assert info["versions"]["torch"] == torch.__version__


def test_a_problem_is_told_once(fresh_python) -> None:
    done = fresh_python(args=["-m", "tefl", "info"], TEFL_PROVIDER="sim", TEFL_SYNC_TIMEOUT="abc", fails=True)
    assert done.stdout.split("problems")[-1].count("TEFL_SYNC_TIMEOUT='abc'") == 1


def test_a_device_that_was_chosen_and_not_claimed_says_what_claims_it(fresh_python) -> None:
    done = fresh_python(args=["-m", "tefl", "info"], TEFL_PROVIDER="sim", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "not claimed in this process: import torch claims it where tefl is installed" in done.stdout


def test_names_in_the_policy_that_nobody_bears_are_mentioned(fresh_python) -> None:
    for arguments in (["info"], ["explain", "rmsnorm_fwd"]):
        done = fresh_python(args=["-m", "tefl", *arguments], TE_FL_PER_OP="rmsnorm=reference")
        assert "op 'rmsnorm', which nobody registered; the nearest known name is" in done.stderr


def test_a_plugin_that_failed_is_shown_with_its_traceback(fresh_python, tmp_path: Path) -> None:
    (tmp_path / "acme_broken.py").write_text("def register(registry):\n    raise OSError('no libacme.so')\n")
    done = fresh_python(
        args=["-m", "tefl", "info"], path=[tmp_path], fails=True, TE_FL_PLUGIN_MODULES="acme_broken"
    )
    assert done.returncode == 1
    assert "acme_broken  TE_FL_PLUGIN_MODULES  failed" in done.stdout
    assert "traceback of acme_broken (TE_FL_PLUGIN_MODULES)" in done.stdout
    assert f'File "{tmp_path}/acme_broken.py", line 2, in register' in done.stdout
    assert "plugin 'acme_broken' (TE_FL_PLUGIN_MODULES) was not loaded: OSError: no libacme.so" in done.stdout


def test_a_plugin_that_was_loaded_is_shown_with_what_it_added(fresh_python, tmp_path: Path) -> None:
    (tmp_path / "acme_fine.py").write_text(
        "import tefl\n"
        "def register(registry):\n"
        "    registry.register_impl(tefl.OpImpl('op', 'vendor.acme', 'vendor', print, vendor='acme'))\n"
    )
    done = fresh_python(
        args=["-m", "tefl", "info", "--json"], path=[tmp_path], TE_FL_PLUGIN_MODULES="acme_fine"
    )
    plugin = next(p for p in json.loads(done.stdout)["plugins"] if p["name"] == "acme_fine")
    assert plugin == {
        "name": "acme_fine",
        "source": "TE_FL_PLUGIN_MODULES",
        "state": "loaded",
        "impl_ids": ["vendor.acme"],
        "traceback": None,
    }


def test_where_nobody_is_chosen_for_the_device_it_says_why(fresh_python) -> None:
    done = fresh_python(args=["-m", "tefl", "info"], TEFL_PROVIDER="none")
    assert "nobody is chosen: TEFL_PROVIDER=none" in done.stdout
    chosen = fresh_python(args=["-m", "tefl", "info"], TEFL_PROVIDER="sim")
    assert "nobody is chosen" not in chosen.stdout


def test_a_defect_of_the_provider_is_a_problem_with_its_remedy(fresh_python, tmp_path: Path) -> None:
    missing = tmp_path / "libnone.so"
    done = fresh_python(args=["-m", "tefl", "info", "--json"], fails=True, TEFL_PROVIDER=str(missing))
    assert done.returncode == 1
    info = json.loads(done.stdout)
    assert info["device"]["registered"] is False
    (defect,) = info["device"]["defects"]
    assert str(missing) in defect["what"]
    assert info["problems"] == [f"{defect['what']}: {defect['remedy']}"]


def test_without_a_subcommand_the_usage_is_shown(command) -> None:
    result = command()
    assert result.status == 2
    assert "usage: python -m tefl" in result.err


def test_output_that_nobody_reads_to_its_end_is_no_traceback(fresh_python) -> None:
    code = """
        import subprocess, sys
        command = [sys.executable, "-m", "tefl", "ops"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stdout.close()
            print("Traceback" in process.stderr.read())
    """
    assert fresh_python(code).stdout == "False\n"


def test_ops_that_are_registered_and_not_declared_are_shown(command, undeclared: str) -> None:
    assert command("info", "--json").json["undeclared_ops"] == [undeclared]
    assert f"  ops registered, not declared: {undeclared}" in command("info").out.splitlines()
