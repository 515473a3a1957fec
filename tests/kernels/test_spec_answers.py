"""What a backend's functions answer is looked at: kernels launched with a wrong answer leave out a part."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..processes import raised
from .spec_trees import install

BAD = {
    "norm_programs, 4, tile, 2": {
        "0": "wanted a positive int",
        "-1": "wanted a positive int",
        "1.5": "wanted a positive int",
        "True": "wanted a positive int",
        "None": "wanted a positive int",
    },
    "multiprocessors, torch.device('cpu')": {
        "0": "wanted a positive int",
        "'2'": "wanted a positive int",
    },
    "norm_reduce_columns, 8": {
        "0": "wanted a power of two",
        "3": "wanted a power of two",
        "1 << 15": "wanted a power of two, at most 16384",
    },
    "norm_forward_tile, 8": {
        "None": "wanted a tefl.kernels.triton._utils.Tile",
        "(1, 8, 4, False)": "wanted a tefl.kernels.triton._utils.Tile",
        "Tile(0, 8, 4, False)": "rows: wanted a power of two",
        "Tile(1, 3, 4, True)": "columns: wanted a power of two",
        "Tile(1, 8, 5, False)": "num_warps: wanted a power of two",
        "Tile(1, 8, 64, False)": "num_warps: wanted a power of two, at most 32",
        "Tile(1 << 11, 1 << 10, 4, False)": "wanted at most 1048576 elements",
        "Tile(1, 4, 4, False)": "wanted all 8 columns of a row, or a tile that loops",
    },
    "norm_backward_tile, 8": {
        "None": "wanted a tefl.kernels.triton._utils.Tile",
        "Tile(1, 4, 4, False)": "wanted all 8 columns of a row, or a tile that loops",
    },
}
"""A function with its arguments -> answer -> what is wrong with it."""

GOOD = {
    "norm_programs, 4, tile, 2": ["1", "100"],
    "multiprocessors, torch.device('cpu')": ["1"],
    "norm_reduce_columns, 8": ["1", "64"],
    "norm_forward_tile, 8": ["Tile(2, 8, 1, False)", "Tile(1, 4, 4, True)"],
    "norm_backward_tile, 8": ["Tile(1, 16, 32, False)"],
}

TREE = """
    _given = {}
    def norm_programs(rows, tile, multiprocessors): return _given["answer"]
    def multiprocessors(device): return _given["answer"]
    def norm_reduce_columns(columns): return _given["answer"]
    def norm_forward_tile(columns): return _given["answer"]
    def norm_backward_tile(columns): return _given["answer"]
"""

ASK = """
    import torch
    from chip_k.spec import _given
    from tefl.kernels.triton import _utils
    from tefl.kernels.triton._utils import Tile
    tile = Tile(1, 8, 4, False)
    for name, arguments, answer in [{asked}]:
        _given["answer"] = answer
        getattr(_utils, name).cache_clear()
        try:
            print("good" if getattr(_utils, name)(*arguments) == answer else "other")
        except ImportError as error:
            print(error)
"""

INTERPRETED = {"TEFL_KERNEL_BACKEND": "chip", "TRITON_INTERPRET": "1"}


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")


@pytest.fixture
def answers(fresh_python, tmp_path: Path):
    """Ask each question of a backend that gives these answers: what comes out, a line each; and the tree."""
    tree = install(tmp_path, {"__init__.py": TREE})

    def answers(cases: list[tuple[str, str]]) -> list[str]:
        split = [(*question.split(", ", 1), answer) for question, answer in cases]
        asked = ", ".join(f"({name!r}, ({arguments},), {answer})" for name, arguments, answer in split)
        done = fresh_python(ASK.format(asked=asked), path=[tmp_path], TEFL_KERNEL_BACKEND="chip")
        lines = done.stdout.splitlines()
        assert len(lines) == len(cases)
        return [line.replace(str(tree), "TREE") for line in lines]

    return answers


def test_an_answer_that_trunk_cannot_use_is_an_error_that_names_the_function_and_the_backend(answers) -> None:
    cases = [(question, answer) for question, wrong in BAD.items() for answer in wrong]
    for (question, answer), line in zip(cases, answers(cases), strict=True):
        name = question.partition(",")[0]
        assert line.startswith(f"TREE/__init__.py, of kernel backend 'chip': {name}("), (question, answer)
        assert BAD[question][answer] in line, (question, answer)


def test_an_answer_that_trunk_can_use_is_taken(answers) -> None:
    cases = [(question, answer) for question, right in GOOD.items() for answer in right]
    assert answers(cases) == ["good"] * len(cases)


def test_a_wrong_answer_is_the_callers_error_every_time_and_explain_shows_it(
    fresh_python, tmp_path: Path
) -> None:
    install(tmp_path, {"__init__.py": "def norm_programs(rows, tile, multiprocessors): return 0\n"})
    code = """
        import torch, tefl
        x, weight = (torch.ones(4, 8, requires_grad=True), torch.ones(8, requires_grad=True))
        for _ in range(2):
            try:
                torch.ops.tefl.rmsnorm_fwd(x, weight)[0].sum().backward()
            except ImportError as error:
                print(str(error).partition("answers")[2])
        said = tefl.explain("rmsnorm_fwd", x, weight).winner.provenance
        print("cannot be used" in said, "answers 0: wanted a positive int" in said)
    """
    done = fresh_python(code, path=[tmp_path], **INTERPRETED)
    assert done.stdout.splitlines() == [" 0: wanted a positive int"] * 2 + ["True True"]


def test_a_function_that_ends_the_program_is_an_error(fresh_python, tmp_path: Path) -> None:
    tree = install(tmp_path, {"__init__.py": "import sys\ndef norm_forward_tile(columns): sys.exit(3)\n"})
    code = "import torch, tefl; torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4))"
    done = fresh_python(code, path=[tmp_path], fails=True, **INTERPRETED)
    said = f"{tree}/__init__.py, of kernel backend 'chip': norm_forward_tile failed: SystemExit: 3"
    assert raised(done.stderr) == f"tefl._errors.SpecError: {said}"


def test_a_function_is_asked_once_for_each_problem(fresh_python, tmp_path: Path) -> None:
    text = "def norm_reduce_columns(columns):\n    print('asked', columns)\n    return 32\n"
    install(tmp_path, {"__init__.py": text})
    code = """
        from tefl.kernels.triton._utils import norm_reduce_columns
        print([norm_reduce_columns(columns) for columns in (8, 8, 9)])
    """
    done = fresh_python(code, path=[tmp_path], TEFL_KERNEL_BACKEND="chip")
    assert done.stdout.splitlines() == ["asked 8", "asked 9", "[32, 32, 32]"]
