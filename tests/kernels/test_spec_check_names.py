"""`spec check` on imports that find nothing, and on functions that a hook exports in place of trunk's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tefl.kernels._spec import check

from .spec_trees import ACME, trunk_file, write


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the example's tree."""
    return shutil.copytree(ACME / "spec", tmp_path / "spec", ignore=shutil.ignore_patterns("__pycache__"))


def findings(tree: Path) -> list[tuple[str, str, str]]:
    """(kind, path below the tree, message)"""
    return [(f.kind, f.file.relative_to(tree).as_posix(), f.message) for f in check.check_tree(tree)]


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("import not_a_module_xyz", "not_a_module_xyz"),
        ("from not_there.deep import x", "not_there.deep"),
        ("import tefl.nothing", "tefl.nothing"),
    ],
)
@pytest.mark.parametrize("path", ["language/_acme.py", "language/__init__.py"])
def test_an_import_that_finds_nothing_is_undefined(tree: Path, path: str, line: str, missing: str) -> None:
    before = (tree / path).read_text() if (tree / path).exists() else ""
    write(tree, {path: f"{before}\n{line}\n"})
    said = f"module {missing!r} is neither installed nor in the tree"
    assert findings(tree) == [("undefined-name", path, said)]


def test_a_function_without_the_decorator_of_trunks_is_found(tree: Path) -> None:
    text = trunk_file("language/reduce.py", ("@triton.jit\ndef row_means", "def row_means"))
    said = "row_means is no @triton.jit function, and trunk's is"
    assert findings(write(tree, {"language/reduce.py": text})) == [("signature", "language/reduce.py", said)]


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("import mychip_runtime", "mychip_runtime"),
        ("from .nothing import x as _x", ".nothing"),
        ("from ..nothing import x as _x", "..nothing"),
    ],
)
def test_an_import_of_the_hooks_that_finds_nothing_is_undefined(tree: Path, line: str, missing: str) -> None:
    write(tree, {"__init__.py": f"{(tree / '__init__.py').read_text()}{line}\n"})
    ((kind, path, message),) = findings(tree)
    assert (kind, path) == ("undefined-name", "__init__.py")
    assert message == f"module {missing!r} is neither installed nor in the tree"


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    import mychip_runtime\nexcept ImportError:\n    mychip_runtime = None\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import mychip_runtime\n",
        "import sys\nif sys.platform == 'mychip':\n    import mychip_runtime\n",
        "def f():\n    import mychip_runtime\n    return mychip_runtime\n",
        "import os.path\nimport json\nfrom tefl.kernels import spec\n",
    ],
)
def test_an_import_that_is_found_or_that_a_file_can_do_without_is_fine(tree: Path, code: str) -> None:
    assert findings(write(tree, {"language/_acme.py": code})) == []


def test_a_hook_that_is_no_function_is_found(tree: Path) -> None:
    write(tree, {"language/__init__.py": "extend_language = 5\n"})
    assert findings(tree) == [
        ("no-function", "language/__init__.py", "'extend_language' must be a function, as trunk calls it")
    ]


@pytest.mark.parametrize(
    "put",
    [
        "exported['widen'] = other",
        "exported['narrow'] = exported['widen'] = other",
        "exported.update(widen=other)",
        "exported.update({'widen': other})",
    ],
)
@pytest.mark.parametrize(
    "other",
    [
        "@triton.jit\n    def other(values, more): pass",
        "def other(values): pass",
        "from tefl.kernels.triton.language.convert import narrow as other",
        "from tefl.kernels.triton.language._more import other",
    ],
)
def test_a_function_that_a_hook_exports_in_place_of_trunks_and_takes_other_arguments_is_found(
    tree: Path, other: str, put: str
) -> None:
    hook = f"import triton\ndef extend_language(exported):\n    {other}\n    {put}\n"
    more = "import triton\n@triton.jit\ndef other(values, more): pass\n"
    write(tree, {"language/__init__.py": hook, "language/_more.py": more})
    found = findings(tree)
    assert {(kind, path) for kind, path, _ in found} == {("signature", "language/__init__.py")}
    assert any(message.startswith("widen") for _, _, message in found)


def test_a_function_that_a_hook_exports_in_place_of_trunks_like_it_is_fine(tree: Path) -> None:
    hook = "import triton\ndef extend_language(exported):\n    exported['widen'] = exported['new'] = _f\n"
    write(tree, {"language/__init__.py": f"{hook}\n@triton.jit\ndef _f(values):\n    return values\n"})
    assert findings(tree) == []


def test_a_copy_of_trunks_file_of_functions_asks_for_the_hooks_that_it_is_imported_for(tree: Path) -> None:
    write(tree, {"_utils.py": trunk_file("_utils.py")})
    ((kind, path, message),) = findings(tree)
    assert (kind, path) == ("cycle", "__init__.py")
    assert message.startswith("__init__.py -> _utils.py -> __init__.py: ")
    assert message.endswith("leave `spec` and `spec_func` to trunk")
