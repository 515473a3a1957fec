"""What is wrong with a backend is an error with its path; trunk never runs silently in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tefl.kernels._spec import trees

from ..processes import raised
from .spec_trees import install, trunk_file

IMPORT = "import tefl.kernels.triton.ops.norm"


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")


@pytest.fixture
def error_of(fresh_python, tmp_path: Path):
    """The last line of the traceback of importing the kernels, or of other code, with backend chip."""

    def error_of(code: str = IMPORT) -> str:
        done = fresh_python(code, path=[tmp_path], fails=True, TEFL_KERNEL_BACKEND="chip")
        return raised(done.stderr)

    return error_of


def test_a_backend_that_is_not_installed_is_an_error_that_lists_those_that_are(
    error_of, tmp_path: Path
) -> None:
    install(tmp_path, {"language/_a.py": ""}, backend="zorg", package="zorg_k")
    install(tmp_path, {"language/_a.py": ""}, backend="other", package="other_k")
    names = ", ".join(sorted({*trees.names(), "other", "zorg"}))
    message = (
        f"tefl._errors.SpecError: kernel backend 'chip' is not installed; installed are {names} "
        "(an entry point of the group 'tefl.kernel_specs' makes one known)"
    )
    assert error_of() == message
    # Also where no Triton kernel would have run: the reference must not hide it.
    assert (
        error_of("import torch, tefl; torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4))") == message
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:\n", "SyntaxError: "),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(4)\n", "SystemExit: 4"),
        ("x = 1\0\n", "source code string cannot contain null bytes"),
        ("x = 'caf\udce9'\n", "SyntaxError: "),
    ],
)
def test_an_overriding_file_that_fails_on_import_is_named(
    error_of, tmp_path: Path, text: str, error: str
) -> None:
    tree = install(tmp_path, {"language/reduce.py": text})
    line = error_of()
    assert line.startswith(f"tefl._errors.SpecError: {tree}/language/reduce.py, of kernel backend 'chip', ")
    assert "cannot be imported: " in line
    assert error in line


@pytest.mark.parametrize("failing", ["__init__.py", "_utils.py", "language/__init__.py"])
def test_a_file_with_hooks_that_fails_on_import_is_named(error_of, tmp_path: Path, failing: str) -> None:
    files = {
        "__init__.py": "from .language import extend_language\nfrom ._utils import norm_programs\n",
        "_utils.py": "def norm_programs(rows, tile, multiprocessors): return 1\n",
        "language/__init__.py": "def extend_language(exported): pass\n",
    }
    tree = install(tmp_path, {**files, failing: f"raise OSError('libchip.so')\n{files[failing]}"})
    assert error_of().startswith(f"tefl._errors.SpecError: {tree}/{failing}, of kernel backend 'chip', ")
    assert error_of().endswith("OSError: libchip.so")


def test_a_package_that_fails_on_import_is_named(error_of, tmp_path: Path) -> None:
    install(tmp_path, {"language/_a.py": ""})
    for text, error in [("raise OSError('no driver')", "OSError: no driver"), ("exit(5)", "SystemExit: 5")]:
        (tmp_path / "chip_k" / "__init__.py").write_text(f"from sys import exit\n{text}\n")
        line = error_of()
        assert "kernel backend 'chip' of chip-k (tefl.kernel_specs: 'chip_k.spec')" in line
        assert f"its package cannot be imported: {error} ({tmp_path}/chip_k/__init__.py)" in line


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("chip_k.nothing", "'chip_k.nothing' is no folder of an installed package"),
        ("no_such_package.spec", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("chip_k:nothing", "AttributeError: module 'chip_k' has no attribute 'nothing'"),
        ("chip_k:elsewhere", "is no folder inside"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_quoted(
    error_of, tmp_path: Path, value: str, reason: str
) -> None:
    install(tmp_path, {"language/_a.py": ""}, value=value)
    (tmp_path / "chip_k" / "__init__.py").write_text("elsewhere = '/'\n")
    line = error_of()
    assert f"kernel backend 'chip' of chip-k (tefl.kernel_specs: {value!r})" in line
    assert reason in line


def test_a_backend_in_two_packages_is_an_error_that_names_both_and_the_hook_that_both_have(
    error_of, tmp_path: Path
) -> None:
    hook = {"__init__.py": "def extend_language(exported): pass\n"}
    trees = [install(tmp_path, hook, package=package) for package in ("chip_one", "chip_two")]
    line = error_of()
    assert "kernel backend 'chip' is in two packages, " in line
    for name, tree in zip(("chip-one", "chip-two"), trees, strict=True):
        assert f"{name} ({tree})" in line
    assert line.endswith("Both have 'extend_language'")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("langauge/rows.py", "trunk has no folder 'langauge'; the nearest known name is 'language'"),
        ("language/row.py", "trunk has no such file; the nearest known name is 'language/rows.py'"),
        ("language/deeper/rows.py", "trunk has no folder 'language/deeper'"),
        ("table.py", "./ is never overridden: it is the parent of all"),
    ],
)
def test_a_file_that_trunk_has_no_place_for_is_an_error(
    error_of, tmp_path: Path, path: str, reason: str
) -> None:
    tree = install(tmp_path, {path: ""})
    line = error_of()
    assert line.startswith(f"tefl._errors.SpecError: {tree}/{path}, of kernel backend 'chip': ")
    assert reason in line


def test_a_hook_that_trunk_does_not_know_is_an_error_with_the_nearest_name(error_of, tmp_path: Path) -> None:
    tree = install(tmp_path, {"__init__.py": "def extend_langauge(exported): pass\n"})
    line = error_of()
    assert f"{tree}/__init__.py, of kernel backend 'chip': trunk has no hook 'extend_langauge'" in line
    assert "the nearest known name is 'extend_language'" in line


def test_a_hook_that_is_no_function_is_an_error(error_of, tmp_path: Path) -> None:
    tree = install(tmp_path, {"__init__.py": "norm_programs = 3\n"})
    assert error_of().endswith(f"{tree}/__init__.py: 'norm_programs' must be a function, got 3")


@pytest.mark.parametrize("path", ["_utils.py", "language/__init__.py"])
def test_a_file_that_could_only_hold_hooks_and_is_not_imported_is_an_error(
    error_of, tmp_path: Path, path: str
) -> None:
    files = {
        "__init__.py": "def norm_reduce_columns(columns): return 16\n",
        path: "def norm_programs(): pass\n",
    }
    tree = install(tmp_path, files)
    line = error_of()
    assert f"{tree}/{path} (kernel backend 'chip') overrides nothing" in line
    assert "the tree's __init__.py does not import it" in line


def test_files_without_hooks_beside_no_init_are_errors_too(error_of, tmp_path: Path) -> None:
    tree = install(tmp_path, {"_utils.py": "def norm_programs(rows, tile, multiprocessors): return 1\n"})
    assert f"{tree}/_utils.py (kernel backend 'chip') overrides nothing" in error_of()


# In each of these the other files of trunk are well, so that another implementation could run: none may.
INCOMPLETE = {
    "an overriding file without a name that trunk's exports": (
        {"language/reduce.py": "def row_means(values, columns): pass\n"},
        "language/reduce.py, of kernel backend 'chip', lacks column_sums, which trunk's file exports",
    ),
    "a hook that raises": (
        {"__init__.py": "def extend_language(exported): raise OSError('no chip')\n"},
        "__init__.py, of kernel backend 'chip': extend_language failed: OSError: no chip",
    ),
    "a hook that ends the program": (
        {"__init__.py": "def extend_language(exported): raise SystemExit(3)\n"},
        "__init__.py, of kernel backend 'chip': extend_language failed: SystemExit: 3",
    ),
    "a hook that takes other arguments": (
        {"__init__.py": "def extend_language(): pass\n"},
        "__init__.py, of kernel backend 'chip': extend_language failed: TypeError: extend_language() takes 0",
    ),
    "a function that takes other arguments": (
        {"__init__.py": "def norm_programs(rows, tile): return 1\n"},
        "__init__.py, of kernel backend 'chip': trunk calls norm_programs(rows, tile) with (rows: ",
    ),
    "a cached function that takes other arguments": (
        {"__init__.py": "import functools\n@functools.cache\ndef norm_reduce_columns(): return 1\n"},
        "__init__.py, of kernel backend 'chip': trunk calls norm_reduce_columns() with (columns: ",
    ),
}


@pytest.mark.parametrize("broken", INCOMPLETE)
def test_what_trunk_cannot_use_is_the_callers_error_and_no_other_implementation_runs(
    error_of, tmp_path: Path, broken: str
) -> None:
    files, message = INCOMPLETE[broken]
    tree = install(tmp_path, files)
    code = """
        import os
        os.environ["TRITON_INTERPRET"] = "1"
        import torch, tefl
        torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4))
    """
    assert error_of(code).startswith(f"tefl._errors.SpecError: {tree}/{message}")


@pytest.mark.parametrize("origin", ["chip_k.launch", "..launch"])
def test_a_misspelt_hook_out_of_the_backends_own_package_is_an_error(
    error_of, tmp_path: Path, origin: str
) -> None:
    install(tmp_path, {"__init__.py": f"from {origin} import norm_foward_tile\n"})
    (tmp_path / "chip_k" / "launch.py").write_text("def norm_foward_tile(columns): pass\n")
    assert "trunk has no hook 'norm_foward_tile'; the nearest known name is 'norm_forward_tile'" in error_of()


def test_a_tree_in_several_folders_is_an_error_that_names_them(fresh_python, tmp_path: Path) -> None:
    trees = [install(tmp_path / part, {"language/_a.py": ""}) for part in ("one", "two")]
    for tree in trees:
        (tree.parent / "__init__.py").unlink()
    path = [tmp_path / part for part in ("one", "two")]
    done = fresh_python(IMPORT, path=path, fails=True, TEFL_KERNEL_BACKEND="chip")
    assert f"lies in several folders, {trees[0]} and {trees[1]}: a tree is one folder" in done.stderr


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("language/reduce.py", "def broken(:\n"),
        ("language/reduce.py", "# caf\udce9\n"),
        ("language/reduce.py", "x = 1\0\n"),
        ("__init__.py", "(\n"),
        ("langauge/reduce.py", ""),
        ("language/reduce.pyc", ""),
    ],
)
def test_a_list_names_the_file_that_is_wrong(fresh_python, tmp_path: Path, path: str, text: str) -> None:
    tree = install(tmp_path, {path: text})
    command = ["-m", "tefl", "spec", "list"]
    done = fresh_python(args=command, path=[tmp_path], fails=True, TEFL_KERNEL_BACKEND="chip")
    assert done.stderr.splitlines()[-1].startswith(f"error: {tree}/{path}")


def test_a_cycle_through_the_hooks_says_what_to_do(error_of, tmp_path: Path) -> None:
    files = {
        "__init__.py": "from ._utils import norm_programs\n",
        "_utils.py": """
            from tefl.kernels.triton._utils import Tile
            def norm_programs(rows, tile, multiprocessors):
                return 1
        """,
    }
    tree = install(tmp_path, files)
    line = error_of("import tefl.kernels.triton.language")
    assert f"cycle: {tree}/__init__.py, of kernel backend 'chip', is asked for " in line
    assert "import trunk inside the functions that need it" in line


def test_a_copy_of_trunks_file_of_functions_is_told_not_to_ask_for_hooks(error_of, tmp_path: Path) -> None:
    copy = trunk_file("_utils.py")
    tree = install(tmp_path, {"__init__.py": "from ._utils import norm_programs\n", "_utils.py": copy})
    line = error_of()
    assert f"cycle: {tree}/__init__.py, of kernel backend 'chip', is asked for " in line
    assert "before its own import has ended" in line
    assert line.endswith("leave spec_func to trunk")


def test_a_file_that_imports_trunks_file_of_its_own_name_is_told_of_the_cycle(
    error_of, tmp_path: Path
) -> None:
    own = "from tefl.kernels.triton.language.reduce import row_means\n"
    tree = install(tmp_path, {"language/reduce.py": own})
    line = error_of()
    assert line.startswith(f"tefl._errors.SpecError: {tree}/language/reduce.py, of kernel backend 'chip', ")
    assert "circular import" in line


def test_a_broken_tree_is_the_callers_error_and_no_other_implementation_runs(
    error_of, tmp_path: Path
) -> None:
    tree = install(tmp_path, {"language/reduce.py": "1 / 0\n"})
    code = """
        import os
        os.environ["TRITON_INTERPRET"] = "1"
        import torch, tefl
        torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4))
    """
    line = error_of(code)
    assert line.startswith(f"tefl._errors.SpecError: {tree}/language/reduce.py, of kernel backend 'chip'")


def test_a_file_that_was_imported_before_trunk_under_a_name_of_its_own_is_an_error(
    error_of, tmp_path: Path
) -> None:
    tree = install(tmp_path, {"language/reduce.py": trunk_file("language/reduce.py")})
    line = error_of(f"import chip_k.spec.language.reduce\n{IMPORT}")
    assert f"{tree}/language/reduce.py was imported as chip_k.spec.language.reduce before trunk was" in line
    assert line.endswith("import tefl.kernels.triton.language.reduce instead")


def test_a_path_that_is_none_of_the_tables_is_refused(fresh_python, tmp_path: Path) -> None:
    install(tmp_path, {"language/reduce.py": trunk_file("language/reduce.py")})
    done = fresh_python(
        """
        import tefl.kernels.triton
        from tefl.kernels.spec import spec_path
        paths = tefl.kernels.triton.__path__, ["/somewhere/triton/language"], tefl.kernels.__path__
        for path in map(list, paths):
            try:
                spec_path(path)
            except ImportError as error:
                print("only the folders ops/, language/ of" in str(error), path[0] in str(error))
        """,
        path=[tmp_path],
        TEFL_KERNEL_BACKEND="chip",
    )
    assert done.stdout.split() == ["True"] * 6
