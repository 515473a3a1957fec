"""python -m tefl spec list, python -m tefl spec check"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tefl.kernels._spec import check, trees

from ..kernels.spec_trees import TRUNK, install, install_acme, write

PACKAGE = "tefl.kernels.triton"


@pytest.fixture
def spec(fresh_python, tmp_path: Path):
    """Run the subcommand in a process of its own, with the backends that are installed in ``tmp_path``."""

    def spec(*arguments: str, fails: bool = False, **variables: str):
        command = ["-m", "tefl", "spec", *arguments]
        return fresh_python(args=command, path=[tmp_path], fails=fails, **variables)

    return spec


def test_list_without_a_backend_says_why_and_shows_trunk(spec) -> None:
    listed = json.loads(spec("list", "--json").stdout)
    assert listed["backend"] is None
    assert {one["name"] for one in listed["installed"]} == set(trees.names())
    assert listed["why"] == "TEFL_KERNEL_BACKEND is unset and no active provider has a tree"
    files = {module["file"] for module in listed["modules"]}
    assert files == {str(path) for path in TRUNK.rglob("*.py")}
    assert {(m["origin"], m["why"]) for m in listed["modules"]} == {("trunk", "no backend is selected")}


def test_list_shows_where_each_module_comes_from_and_who_answers_each_hook(spec, tmp_path: Path) -> None:
    tree = install_acme(tmp_path)
    listed = json.loads(spec("list", "--json", TEFL_KERNEL_BACKEND="acme").stdout)
    assert (listed["backend"], listed["why"]) == ("acme", "TEFL_KERNEL_BACKEND=acme")
    modules = {module.pop("module"): module for module in listed["modules"]}
    assert modules[f"{PACKAGE}.language.convert"] == {
        "origin": "acme",
        "file": str(tree / "language" / "convert.py"),
        "why": "overrides trunk's file",
        "hooks": {},
    }
    assert modules[f"{PACKAGE}.language.rows"]["why"] == "the tree has no such file"
    assert modules[f"{PACKAGE}.language"]["hooks"] == {"extend_language": "acme"}
    hooks = modules[f"{PACKAGE}._utils"]["hooks"]
    assert (hooks["norm_forward_tile"], hooks["norm_programs"]) == ("acme", "trunk")


def test_the_text_has_a_line_for_each_module(spec, tmp_path: Path) -> None:
    install_acme(tmp_path)
    lines = spec("list", TEFL_KERNEL_BACKEND="acme").stdout.splitlines()
    assert lines[0] == "backend: acme (TEFL_KERNEL_BACKEND=acme)"
    assert "  acme  acme-kernels  acme_kernels.spec" in lines
    (convert,) = [line.split() for line in lines if f"{PACKAGE}.language.convert" in line]
    assert convert[1:] == ["acme", "overrides", "trunk's", "file"]


def test_a_helper_of_the_trees_own_is_listed(spec, tmp_path: Path) -> None:
    install(tmp_path, {"language/_acme.py": ""}, backend="acme", package="acme_k")
    listed = json.loads(spec("list", "--json", TEFL_KERNEL_BACKEND="acme").stdout)
    (helper,) = [module for module in listed["modules"] if module["module"].endswith("._acme")]
    assert (helper["origin"], helper["why"]) == ("acme", "a helper of the tree's own")


@pytest.mark.parametrize("action", ["list", "check"])
def test_a_backend_that_is_not_installed_is_an_error_that_lists_those_that_are(
    spec, tmp_path: Path, action: str
) -> None:
    install_acme(tmp_path)
    asked = ["list"] if action == "list" else ["check", "acmee"]
    done = spec(*asked, fails=True, TEFL_KERNEL_BACKEND="acmee" if action == "list" else "")
    assert (done.returncode, done.stdout) == (1, "")
    names = ", ".join(sorted({*trees.names(), "acme"}))
    assert done.stderr == (
        f"error: kernel backend 'acmee' is not installed; installed are {names} "
        "(an entry point of the group 'tefl.kernel_specs' makes one known)\n"
    )


@pytest.mark.parametrize("which", ["acme", "{tree}"])
def test_check_of_the_example_finds_nothing_and_says_where(spec, tmp_path: Path, which: str) -> None:
    tree = install_acme(tmp_path)
    done = spec("check", which.format(tree=tree))
    said = f"acme ({tree})" if which == "acme" else str(tree)
    assert done.stdout == f"nothing found in {said}, trunk ({TRUNK})\n"


def test_check_without_a_tree_looks_at_trunk_and_every_installed_one(spec, tmp_path: Path) -> None:
    tree = install_acme(tmp_path)
    assert f"acme ({tree}), " in spec("check").stdout


def test_check_writes_one_line_a_finding_and_exits_with_1(spec, tmp_path: Path) -> None:
    tree = install_acme(tmp_path)
    write(tree, {"langauge/rows.py": "", "language/_helper.py": "from . import convert\n"})
    done = spec("check", fails=True)
    assert done.returncode == 1
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{tree}/langauge/rows.py:1: unknown-path: trunk has no folder 'langauge'")
    assert second.startswith(f"{tree}/language/_helper.py:1: relative-import: ")


def test_check_with_json_holds_the_same(spec, tmp_path: Path) -> None:
    tree = install_acme(tmp_path)
    write(tree, {"language/_helper.py": "\nfrom . import convert\n"})
    (finding,) = json.loads(spec("check", "--json", fails=True).stdout)
    assert finding.pop("message")
    assert finding == {"kind": "relative-import", "file": str(tree / "language" / "_helper.py"), "line": 2}
    (tree / "language" / "_helper.py").unlink()
    assert json.loads(spec("check", "--json").stdout) == []


def test_check_looks_at_every_installed_tree(spec, tmp_path: Path) -> None:
    install_acme(tmp_path)
    other = install(tmp_path, {"nowhere.py": ""}, backend="other", package="other_k")
    (line,) = spec("check", fails=True).stdout.splitlines()
    assert line.startswith(f"{other}/nowhere.py:1: unknown-path")


def test_record_writes_what_a_tree_was_written_against(spec, tmp_path: Path) -> None:
    convert = install_acme(tmp_path) / "language" / "convert.py"
    written = convert.read_text()
    convert.write_text(written.replace("sha256: ", "sha256: 0"))
    assert "trunk-changed" in spec("check", "acme", fails=True).stdout
    recorded, nothing = spec("check", "acme", "--record").stdout.splitlines()
    assert recorded == f"recorded {convert}"
    assert nothing.startswith("nothing found in acme (")
    assert convert.read_text() == written


def test_a_path_that_is_no_folder_is_a_usage_error(spec) -> None:
    done = spec("check", "no/such/tree", fails=True)
    assert done.returncode == 2
    assert "'no/such/tree' is no folder" in done.stderr


def test_check_explains_what_it_can_find(spec) -> None:
    shown = " ".join(spec("check", "--help").stdout.split())
    for kind, meaning in check.KINDS.items():
        assert f"{kind} {meaning}" in shown


def test_a_name_that_is_no_text_is_shown_escaped(spec, tmp_path: Path) -> None:
    (write(tmp_path / "spec" / "language", {"_a.py": ""}) / "caf\udce9.py").touch()
    done = spec("check", str(tmp_path / "spec"), fails=True)
    assert "caf\\udce9.py:1: unknown-path: " in done.stdout
