"""`spec check`: a clean tree has no finding, and each way to spoil it has exactly its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tefl.kernels._spec import check
from tefl.kernels._spec.rules import TABLE, TRUNK, files_of, rule_for
from tefl.kernels._spec.source import Source
from tefl.kernels._spec.text import exported_names, hooks_of_trunk

from .spec_trees import ACME, ROOT, trunk_file, write


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the example's tree."""
    return shutil.copytree(ACME / "spec", tmp_path / "spec", ignore=shutil.ignore_patterns("__pycache__"))


def findings(tree: Path, trunk: Path = TRUNK) -> list[tuple[str, str, str]]:
    """(kind, path below the tree, message)"""
    found = check.check_tree(tree, trunk)
    return [(f.kind, f.file.relative_to(tree).as_posix(), f.message) for f in found]


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_example_is_clean() -> None:
    assert check.check_tree(ACME / "spec") == []


def test_trunk_is_clean() -> None:
    assert check.check_trunk(["acme", "cuda", "cpu"]) == []


def test_an_empty_tree_is_clean(tmp_path: Path) -> None:
    assert findings(write(tmp_path, {})) == []


@pytest.mark.parametrize(
    ("path", "text", "kind", "message"),
    [
        ("langauge/rows.py", "", "unknown-path", "trunk has no folder 'langauge'; the nearest"),
        ("language/row.py", "", "unknown-path", "trunk has no such file; the nearest"),
        ("table.py", "", "not-overridable", "./ is never overridden"),
        ("ops/__init__.py", "", "unused", "does not import it"),
        ("language/reduce.py", trunk_file("language/reduce.py"), "identical", "does what trunk's file does"),
        (
            "language/reduce.py",
            trunk_file("language/reduce.py").replace('"""The sum of each column of a tile."""', "# the sum"),
            "identical",
            "does what trunk's file does",
        ),
        ("language/_acme.py", "from . import convert\n", "relative-import", "only the tree's top"),
        ("language/_acme.py", "def f():\n    return undefined_here\n", "undefined-name", "'undefined_here'"),
        (
            "language/_acme.py",
            "from tefl.kernels.triton.language.rows import load_tiles\n",
            "undefined-name",
            "'tefl.kernels.triton.language.rows' has no 'load_tiles'",
        ),
        (
            "language/_acme.py",
            "import tefl.kernels.triton.language.row\n",
            "undefined-name",
            "trunk has no module 'tefl.kernels.triton.language.row'",
        ),
        (
            "language/reduce.py",
            trunk_file("language/reduce.py", ("def column_sums(values)", "def column_totals(values)")),
            "undefined-name",
            "'column_sums' of trunk's language/reduce.py is missing",
        ),
        (
            "language/reduce.py",
            trunk_file("language/reduce.py", ("def column_sums(values)", "def column_sums(values, rows)")),
            "signature",
            "column_sums(values, rows) takes other arguments than trunk's column_sums(values)",
        ),
        (
            "language/rows.py",
            trunk_file("language/rows.py", ("ROWS: tl.constexpr", "ROWS")),
            "signature",
            "takes other arguments than trunk's row_block(block, rows, ROWS: constexpr)",
        ),
        (
            "language/reduce.py",
            trunk_file("language/reduce.py", ("values, 0", "values + 0, 0")).partition("\n")[2],
            "no-record",
            "`python -m tefl spec check --record TREE` writes it",
        ),
        ("language/_acme.py", "def broken(:\n", "syntax", "SyntaxError"),
        ("language/_acme.py", "# caf\udce9\n", "syntax", "SyntaxError"),
        ("_helper.py", "x = 1\n", "unused", "no file of the tree imports it"),
        ("language/_acme.py", "x = 1\0\n", "syntax", "null bytes"),
        ("language/_acme.py", "def f(a, a):\n    pass\n", "syntax", "duplicate argument"),
        ("language/_acme.py", "return 3\n", "syntax", "outside function"),
        ("conftest.py", "x = 1\n", "unknown-path", "trunk has no such file; known are _utils.py; a helper"),
    ],
)  # fmt: skip
def test_a_spoiled_file_gets_exactly_its_finding(
    tree: Path, path: str, text: str, kind: str, message: str
) -> None:
    write(tree, {path: text})
    ((found, where, said),) = findings(tree)
    assert (found, where) == (kind, path)
    assert message in said


def test_a_file_that_the_trunk_has_changed_since_is_found(tree: Path) -> None:
    change(tree / "language" / "convert.py", "# trunk sha256: ", "# trunk sha256: 0")
    ((kind, path, message),) = findings(tree)
    assert (kind, path) == ("trunk-changed", "language/convert.py")
    assert check.fingerprint(TRUNK / "language" / "convert.py") in message


def test_recording_writes_what_was_missing_or_old_and_nothing_else(tree: Path) -> None:
    convert = tree / "language" / "convert.py"
    before = convert.read_text()
    assert check.record(tree) == []
    for spoiled in (before.partition("\n")[2], before.replace("sha256: ", "sha256: 0")):
        convert.write_text(spoiled)
        assert check.record(tree) == [convert]
        assert convert.read_text() == before


def test_a_misspelt_hook_is_unknown(tree: Path) -> None:
    change(tree / "__init__.py", "import extend_language", "import extend_language, extend_langauge")
    change(
        tree / "language" / "__init__.py",
        "def extend_language",
        "def extend_langauge(exported): pass\n\ndef extend_language",
    )
    ((kind, path, message),) = findings(tree)
    assert (kind, path) == ("unknown-hook", "__init__.py")
    assert "trunk has no hook 'extend_langauge'; the nearest known name is 'extend_language'" in message


WAYS_TO_OFFER = {
    "a name": "from ._utils import {hook}\n",
    "another name": "from ._utils import _inner as {hook}\n",
    "by the absolute name": "from acme.spec._utils import {hook}\n",
    "all names": "from ._utils import *\n",
    "the module": "from . import _utils\n{hook} = _utils.{hook}\n",
    "the package that it lies in": "from acme.launch import {hook}\n",
    "a level higher": "from ..launch import {hook}\n",
    "where it can": "try:\n    from ._utils import {hook}\nexcept ImportError:\n    pass\n",
    "a list": "from math import floor as {hook}\n__all__ = ['{hook}']\n",
}


@pytest.mark.parametrize("way", WAYS_TO_OFFER)
@pytest.mark.parametrize("hook", ["norm_reduce_columns", "norm_reduce_colums"])
def test_a_hook_is_known_or_unknown_however_it_comes_into_the_top_file(
    tmp_path: Path, way: str, hook: str
) -> None:
    top = WAYS_TO_OFFER[way].format(hook=hook)
    files = {"__init__.py": top, "../launch.py": f"def {hook}(columns):\n    return 16\n"}
    if "_utils" in top:
        files["_utils.py"] = f"def {hook}(columns):\n    return 16\n\n\n_inner = {hook}\n"
    found = findings(write(tmp_path / "acme" / "spec", files))
    known = hook == "norm_reduce_columns"
    assert [kind for kind, _, _ in found] == ([] if known else ["unknown-hook"])


def test_a_file_that_the_hooks_import_by_another_of_the_tree_is_used(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from .language import extend_language\n",
        "_utils.py": "def extend(exported):\n    pass\n",
        "_helper.py": "x = 1\n",
        "language/__init__.py": "from acme.spec._utils import extend as extend_language\n",
        "language/_more.py": "def f():\n    from acme.spec._helper import x\n    return x\n",
    }
    assert findings(write(tmp_path / "acme" / "spec", files)) == []


def test_what_trunk_exports_and_asks_for_is_read_alike_by_patterns_and_by_parsing() -> None:
    sources = [Source.read(file, path) for path, file in files_of(TRUNK).items()]
    assert hooks_of_trunk() == {call.name for source in sources for call in source.spec_calls}
    for source in sources:
        if rule_for(source.path).files and not source.path.endswith("__init__.py"):
            assert set(exported_names(source.path)) == source.exported != set()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_record_leaves_the_rest_of_a_file_as_it_is(tree: Path, mark: bytes) -> None:
    convert = tree / "language" / "convert.py"
    record, code = convert.read_bytes().split(b"\n", 1)
    code = code.replace(b"\n", b"\r\n")
    convert.write_bytes(mark + code)
    assert [kind for kind, _, _ in findings(tree)] == ["no-record"]
    assert check.record(tree) == [convert]
    assert convert.read_bytes() == record + b"\n" + code
    assert findings(tree) == []


def test_a_hook_that_is_imported_and_not_there_is_undefined(tree: Path) -> None:
    change(tree / "language" / "__init__.py", "def extend_language", "def _extend_language")
    ((kind, path, message),) = findings(tree)
    assert (kind, path) == ("undefined-name", "__init__.py")
    assert "has no 'extend_language'" in message


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        ("_utils.py", "norm_forward_tile(columns: int)", "norm_forward_tile(columns: int, rows: int)",
         "norm_forward_tile(columns, rows) takes other arguments than trunk's norm_forward_tile(columns)"),
        ("language/__init__.py", "extend_language(exported: dict[str, Any])", "extend_language()",
         "trunk calls 'extend_language' with 1 argument (language/__init__.py:"),
    ],
)  # fmt: skip
def test_a_hook_with_other_arguments_is_found(tree: Path, path: str, old: str, new: str, said: str) -> None:
    change(tree / path, old, new)
    if "exported" in old:
        change(tree / path, "    from tefl", "    exported = {}\n    from tefl")
    ((kind, where, message),) = findings(tree)
    assert (kind, where) == ("signature", path)
    assert said in message


def test_a_file_with_functions_that_the_hooks_do_not_import_is_unused(tree: Path) -> None:
    change(tree / "__init__.py", "from ._utils import norm_forward_tile\n", "")
    change(tree / "__init__.py", ', "norm_forward_tile"', "")
    assert [(kind, path) for kind, path, _ in findings(tree)] == [("unused", "_utils.py")]


@pytest.mark.parametrize(
    ("files", "chain"),
    [
        (
            {"language/_acme.py": "import tefl.kernels.triton.language._acme\n"},
            "language/_acme.py -> language/_acme.py",
        ),
        (
            {
                "language/_one.py": "from tefl.kernels.triton.language._two import b\na = 1\n",
                "language/_two.py": "from tefl.kernels.triton.language import _one\nb = 1\n",
            },
            "language/_one.py -> language/_two.py -> language/_one.py",
        ),
    ],
)
def test_files_that_import_one_another_are_a_cycle(tmp_path: Path, files: dict[str, str], chain: str) -> None:
    found = findings(write(tmp_path, files))
    assert [kind for kind, _, _ in found] == ["cycle"]
    assert found[0][2].startswith(chain)


def test_an_override_that_imports_a_file_of_trunk_that_needs_it_is_a_cycle(tree: Path) -> None:
    top = "import triton\n\nfrom tefl.kernels.triton.language.rows import row_block as _row_block\n"
    change(tree / "language" / "convert.py", "import triton\n", top)
    ((kind, path, message),) = findings(tree)
    assert (kind, path) == ("cycle", "language/convert.py")
    assert message.startswith("language/convert.py -> trunk's language/rows.py -> language/convert.py")


def test_a_hook_out_of_an_overriding_file_is_a_cycle_through_trunks_package(tree: Path) -> None:
    change(
        tree / "__init__.py",
        "from .language import",
        "from .language.convert import widen as _widen\nfrom .language import",
    )
    ((kind, path, message),) = findings(tree)
    assert (kind, path) == ("cycle", "__init__.py")
    assert message.startswith("__init__.py -> trunk's language/__init__.py -> __init__.py")


def test_hooks_that_import_trunk_while_trunk_waits_for_them_are_a_cycle(tree: Path) -> None:
    change(
        tree / "_utils.py",
        "from typing import Any\n",
        "from typing import Any\nfrom tefl.kernels.triton import _utils\n",
    )
    ((kind, _, message),) = findings(tree)
    assert kind == "cycle"
    files = ["__init__.py", "_utils.py", "trunk's _utils.py", "__init__.py"]
    assert message.startswith(" -> ".join(files))
    assert "import inside the function that needs it" in message


# --- against another trunk ----------------------------------------------------------------------------------

NESTED = {
    "__init__.py": "",
    "language/__init__.py": "spec_path(__path__)\n",
    "language/rows.py": "def rows(a):\n    return a\n",
    "language/extra/__init__.py": "",
    "language/extra/math.py": "def exp(a):\n    return a\n",
    "language/extra/other.py": "def log(a):\n    return a\n",
}


def recorded(trunk: Path, path: str, text: str) -> dict[str, str]:
    return {path: f"# trunk sha256: {check.fingerprint(trunk / path)}\n{text}"}


def test_a_folder_and_a_part_of_its_child_are_a_double_override(tmp_path: Path) -> None:
    trunk = write(tmp_path / "trunk", NESTED)
    parent = recorded(trunk, "language/rows.py", "def rows(a):\n    return a + 0\n")
    child = recorded(trunk, "language/extra/math.py", "def exp(a):\n    return a + 0\n")
    tree = write(tmp_path / "tree", {**parent, **child})
    ((kind, path, message),) = findings(tree, trunk)
    assert (kind, path) == ("double-override", "language/extra/math.py")
    assert "carry the whole of language/extra/" in message
    assert "language/extra/other.py" in message


def test_the_parent_alone_with_the_whole_child_is_fine(tmp_path: Path) -> None:
    trunk = write(tmp_path / "trunk", NESTED)
    files = recorded(trunk, "language/extra/__init__.py", "WHOLE = True\n")
    for path, name in (("rows", "rows"), ("extra/math", "exp"), ("extra/other", "log")):
        files |= recorded(trunk, f"language/{path}.py", f"def {name}(a):\n    return a + 0\n")
    assert findings(write(tmp_path / "tree", files), trunk) == []


@pytest.mark.parametrize(
    "branch",
    [
        'if name == "acme":\n    pass\n',
        'if name in ("acme", "other"):\n    pass\n',
        "from tefl.kernels.spec import active_backend\nx = active_backend()\n",
        "from tefl.kernels import spec\nif spec.active_backend():\n    pass\n",
        "import tefl.kernels.backends.acme.spec\n",
    ],
)
def test_a_file_of_trunk_with_a_branch_on_a_backend_is_found(tmp_path: Path, branch: str) -> None:
    trunk = write(tmp_path / "trunk", {"language/rows.py": f'name = "acme"\n{branch}'})
    (found,) = check.check_trunk(["acme"], trunk)
    assert (found.kind, found.file) == ("backend-branch", trunk / "language" / "rows.py")
    assert found.line > 1


@pytest.mark.parametrize("text", ['# only on acme\nx = "acme"\n', 'if device == "cuda":\n    pass\n'])
def test_a_word_is_no_branch_and_a_device_no_backend(tmp_path: Path, text: str) -> None:
    trunk = write(tmp_path / "trunk", {"language/rows.py": text})
    assert check.check_trunk(["acme", "cuda"], trunk) == []


def test_a_file_of_trunk_that_may_not_be_specialised_and_asks_for_a_hook_is_found(tmp_path: Path) -> None:
    trunk = write(tmp_path / "trunk", {"table.py": 'spec("extend_table", globals())\n'})
    (found,) = check.check_trunk([], trunk)
    assert (found.kind, found.line) == ("not-specialisable", 1)


def test_every_folder_that_the_table_opens_calls_spec_path_and_no_other_does() -> None:
    calling = {
        p.relative_to(TRUNK).parent.as_posix() for p in TRUNK.rglob("*.py") if "spec_path(" in p.read_text()
    }
    assert {f"{folder}/" for folder in calling} == {rule.where for rule in TABLE if rule.files}


def test_the_table_in_the_documentation_is_the_table_in_the_code() -> None:
    text = (ROOT / "docs" / "specialisation.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", text.partition("## The three ways")[0], re.MULTILINE)
    assert rows == [(rule.where, rule.why) for rule in TABLE]


def test_the_documentation_has_every_kind_of_finding() -> None:
    text = (ROOT / "docs" / "specialisation.md").read_text().partition("| finding |")[2]
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", text, re.MULTILINE)) == check.KINDS


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("language/rows.py", "language/"),
        ("language/deeper/x.py", "language/"),
        ("languages/rows.py", "./"),
        ("_utils.py", "_utils.py"),
        ("table.py", "./"),
        ("ops/norm.py", "ops/"),
    ],
)
def test_the_rule_of_a_file_is_that_of_its_nearest_place(path: str, where: str) -> None:
    assert rule_for(path).where == where
