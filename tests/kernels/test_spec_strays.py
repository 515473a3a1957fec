"""What lies in a tree and is no Python file is an error: trunk's file would run silently in its place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tefl._errors import SpecError
from tefl.kernels import spec
from tefl.kernels._spec import check, trees
from tefl.kernels._spec.contents import contents_of

from .spec_trees import install, write

STRAYS = {
    "a link that leads nowhere": ("language/convert.py", lambda file: file.symlink_to("/nowhere/convert.py")),
    "a link to itself": ("language/convert.py", lambda file: file.symlink_to(file)),
    "a folder called like a file": ("language/convert.py", Path.mkdir),
    "a queue": ("language/convert.py", os.mkfifo),
    "bytecode": ("language/convert.pyc", Path.touch),
    "bytecode of the hooks": ("__init__.pyc", Path.touch),
    "a compiled module": ("language/convert.cpython-311-x86_64-linux-gnu.so", Path.touch),
    "another ending": ("language/convert.py.orig", Path.touch),
    "no ending": ("language/convert", Path.touch),
    "a folder that holds itself": ("language/deeper", lambda folder: folder.symlink_to("..")),
}
"""Where it lies, how it is made."""


@pytest.fixture(params=STRAYS)
def stray(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What lies in the tree of backend chip and is no Python file."""
    path, make = STRAYS[request.param]
    file = install(tmp_path, {}) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    make(file)
    return file


def test_what_is_no_python_file_is_an_error_and_trunk_does_not_run_in_its_place(stray: Path) -> None:
    folder = next(parent for parent in stray.parents if parent.name == "spec")
    with pytest.raises(SpecError) as raised:
        spec._placed(trees.Tree("chip", "chip_k.spec", folder, "chip-k"))
    assert str(raised.value).startswith(f"{stray}, of kernel backend 'chip': ")


def test_what_is_no_python_file_is_found(stray: Path) -> None:
    folder = next(parent for parent in stray.parents if parent.name == "spec")
    assert [(f.kind, f.file) for f in check.check_tree(folder)] == [("not-source", stray)]


def test_what_is_no_python_file_stops_the_first_use(fresh_python, tmp_path: Path) -> None:
    tree = install(tmp_path, {"__init__.pyc": ""})
    code = "import torch, tefl; torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4))"
    done = fresh_python(code, path=[tmp_path], fails=True, TEFL_KERNEL_BACKEND="chip")
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"tefl._errors.SpecError: {tree}/__init__.pyc, of kernel backend 'chip': ")


def test_texts_data_caches_and_names_with_a_dot_may_lie_in_a_tree(tmp_path: Path) -> None:
    paths = ["README.md", "language/tiles.json", "py.typed", ".git/x.py", "language/.convert.py.swp"]
    tree = write(tmp_path, dict.fromkeys([*paths, "language/__pycache__/convert.cpython-311.pyc"], ""))
    assert check.check_tree(tree) == []
    found = contents_of(tree)
    assert (found.files, found.strays) == ({}, {})


def test_a_tree_that_cannot_be_written_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = write(tmp_path, {"language/convert.py": "x = 1\n"})
    convert = tree / "language" / "convert.py"

    def refuse(file: Path, data: bytes) -> int:
        raise OSError(errno.EROFS, "Read-only file system", str(file))

    monkeypatch.setattr(Path, "write_bytes", refuse)  # root may write everywhere
    with pytest.raises(
        SpecError, match=f"^{convert} cannot be written, so nothing is recorded there: OSError"
    ):
        check.record(tree)
