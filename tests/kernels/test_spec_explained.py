"""What `explain` says of a backend whose tree cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from .spec_trees import install, trunk_file


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")


EXPLAIN = """
    import torch, tefl
    x, weight = torch.ones(2, 4), torch.ones(4)
    print(tefl.explain("rmsnorm_fwd", x, weight).winner.provenance)
    try:
        torch.ops.tefl.rmsnorm_fwd(x, weight)
    except ImportError as error:
        print(error)
    print(tefl.explain("rmsnorm_fwd", x, weight).winner.provenance)
"""
REDUCE = trunk_file("language/reduce.py")
UNUSABLE = {
    "an import that fails": ({"language/reduce.py": "import no_such_module\n"}, True),
    "an import of the hooks that fails": ({"__init__.py": "import no_such_module\n"}, True),
    "a syntax error": ({"language/reduce.py": "def broken(:\n"}, True),
    "a cycle": (
        {"language/reduce.py": f"from tefl.kernels.triton.language import row_block\n{REDUCE}"},
        True,
    ),
    "missing names": ({"language/reduce.py": "def row_means(values, columns): pass\n"}, True),
    "an unknown hook": ({"__init__.py": "def extend_langauge(exported): pass\n"}, True),
    "other arguments": ({"__init__.py": "def norm_programs(): pass\n"}, True),
    "a hook that is no function": ({"__init__.py": "norm_programs = 3\n"}, True),
    "an unused file": ({"_utils.py": "def norm_programs(rows, tile, multiprocessors): return 1\n"}, True),
    "a hook that raises": ({"__init__.py": "def extend_language(exported): raise OSError\n"}, False),
}  # fmt: skip
"""Files, and whether reading them tells."""


@pytest.mark.parametrize("unusable", UNUSABLE)
def test_explain_says_why_a_tree_cannot_be_used(fresh_python, tmp_path: Path, unusable: str) -> None:
    files, tells = UNUSABLE[unusable]
    install(tmp_path, files)
    variables = {"TEFL_KERNEL_BACKEND": "chip", "TRITON_INTERPRET": "1"}
    before, error, after = fresh_python(EXPLAIN, path=[tmp_path], **variables).stdout.splitlines()
    assert (": a fault, by `python -m tefl spec check`: " in before) == tells
    assert after == f"kernels of backend 'chip' (TEFL_KERNEL_BACKEND=chip): cannot be used: {error}"


def test_a_failure_that_is_mended_is_forgotten(fresh_python, tmp_path: Path) -> None:
    install(tmp_path, {"language/reduce.py": trunk_file("language/reduce.py") + "\nimport lib_of_chip\n"})
    mended = EXPLAIN + f"    open({str(tmp_path / 'lib_of_chip.py')!r}, 'w').close()\n"
    code = f"{mended}    import importlib; importlib.invalidate_caches()\n{EXPLAIN}"
    variables = {"TEFL_KERNEL_BACKEND": "chip", "TRITON_INTERPRET": "1"}
    lines = fresh_python(code, path=[tmp_path], **variables).stdout.splitlines()
    assert "cannot be used" in lines[2]
    assert lines[-1] == "kernels of backend 'chip' (TEFL_KERNEL_BACKEND=chip): language/reduce.py"
