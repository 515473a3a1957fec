"""A backend's tree beside trunk: whole files, hooks and functions; one process a backend."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .spec_trees import ROOT, TRUNK, install, trunk_file, write

MODULE = "tefl.kernels.triton"


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")


def test_without_a_backend_every_module_is_trunks_and_every_function_trunks_own(fresh_python) -> None:
    done = fresh_python(f"""
        from pathlib import Path
        import tefl.kernels.triton.ops.norm as norm
        from tefl.kernels import spec
        from tefl.kernels.triton import _utils, language, ops
        from tefl.kernels.triton.language import convert
        print(spec.active_backend(), list(map(len, (language.__path__, ops.__path__))))
        print(Path(convert.__file__) == Path({str(TRUNK)!r}) / "language/convert.py")
        print(_utils.norm_forward_tile is _utils.default_norm_forward_tile, "widen_bits" in dir(language))
    """)
    assert done.stdout.splitlines() == ["None [1, 1]", "True", "True False"]


def test_files_of_a_folder_are_overridden_whole_while_its_others_come_from_trunk(
    fresh_python, tmp_path: Path
) -> None:
    marked = [
        trunk_file(f"language/{name}.py") + f"\nMARK = 'chip {name}'\n" for name in ("convert", "reduce")
    ]
    tree = install(tmp_path, {"language/convert.py": marked[0], "language/reduce.py": marked[1]})
    done = fresh_python(
        """
        import tefl.kernels.triton.ops.norm
        from tefl.kernels.triton.language import convert, norm, reduce, rows
        for module in (convert, reduce, rows, norm):
            print(module.__name__, module.__file__, getattr(module, "MARK", None))
        """,
        path=[tmp_path],
        TEFL_KERNEL_BACKEND="chip",
    )
    assert [line.split(" ", 2) for line in done.stdout.splitlines()] == [
        [f"{MODULE}.language.convert", f"{tree}/language/convert.py", "chip convert"],
        [f"{MODULE}.language.reduce", f"{tree}/language/reduce.py", "chip reduce"],
        [f"{MODULE}.language.rows", f"{TRUNK}/language/rows.py", "None"],
        [f"{MODULE}.language.norm", f"{TRUNK}/language/norm.py", "None"],
    ]


def test_a_hook_adds_exported_names(fresh_python, tmp_path: Path) -> None:
    files = {
        "__init__.py": "from .language import extend_language\n",
        "language/__init__.py": """
            def extend_language(exported):
                from tefl.kernels.triton.language.rows import row_block
                exported["squeeze"] = row_block
                exported["__all__"].append("squeeze")
        """,
    }
    install(tmp_path, files)
    done = fresh_python(
        """
        from tefl.kernels.triton.language import *
        from tefl.kernels.triton.language.rows import row_block as original
        print(squeeze is original, load_tile.__name__)
        """,
        path=[tmp_path],
        TEFL_KERNEL_BACKEND="chip",
    )
    assert done.stdout == "True load_tile\n"


def test_a_function_is_added_where_the_folder_may_not_be_overridden(fresh_python, tmp_path: Path) -> None:
    files = {
        "__init__.py": "from ._utils import norm_reduce_columns\n",
        "_utils.py": "def norm_reduce_columns(columns):\n    return 16\n",
    }
    install(tmp_path, files)
    done = fresh_python(
        """
        from tefl.kernels.triton import _utils
        print(_utils.__file__, _utils.norm_reduce_columns(9000), _utils.default_norm_reduce_columns(9000))
        """,
        path=[tmp_path],
        TEFL_KERNEL_BACKEND="chip",
    )
    assert done.stdout.split() == [f"{TRUNK}/_utils.py", "16", "128"]


def test_a_function_that_the_backend_lacks_is_the_default_and_a_hook_does_nothing(
    fresh_python, tmp_path: Path
) -> None:
    install(tmp_path, {"language/reduce.py": trunk_file("language/reduce.py") + "\n# chip\n"})
    code = """
        from tefl.kernels.spec import spec, spec_func
        print(spec("no_such_hook", 1), spec_func("no_such"), spec_func("other", default=print) is print)
    """
    for variables in ({}, {"TEFL_KERNEL_BACKEND": "chip"}):
        assert fresh_python(code, path=[tmp_path], **variables).stdout == "None None True\n"


def test_a_file_is_one_module_under_whatever_name_it_is_imported(fresh_python, tmp_path: Path) -> None:
    files = {
        "language/convert.py": trunk_file("language/convert.py") + "\nprint('executed')\n",
        "language/_chip.py": "VALUE = 3\n",
    }
    install(tmp_path, files)
    for first, second in [
        ("chip_k.spec.language.convert", f"{MODULE}.language.convert"),
        (f"{MODULE}.language.convert", "chip_k.spec.language.convert"),
        ("chip_k.spec.language._chip", f"{MODULE}.language._chip"),
    ]:
        done = fresh_python(
            f"""
            import importlib
            import {MODULE}.ops
            one, two = map(importlib.import_module, ({first!r}, {second!r}))
            print(one is two, one.__name__, one.__spec__.name)
            """,
            path=[tmp_path],
            TEFL_KERNEL_BACKEND="chip",
        )
        lines = done.stdout.splitlines()
        assert lines.count("executed") == 1, lines
        name = f"{MODULE}.language.{first.rpartition('.')[2]}"
        assert lines[-1] == f"True {name} {name}"


@pytest.mark.parametrize("value", ["chip_k.spec", "chip_k:tree", "chip_k:where"])
def test_the_entry_point_names_the_folder_as_a_package_or_as_a_path(
    fresh_python, tmp_path: Path, value: str
) -> None:
    tree = install(tmp_path, {"language/_chip.py": "VALUE = 3\n"}, value=value)
    code = "from pathlib import Path\ntree = Path(__file__).parent / 'spec'\ndef where(): return str(tree)\n"
    (tmp_path / "chip_k" / "__init__.py").write_text(code)
    done = fresh_python(
        "from tefl.kernels import spec; print(spec.choice().tree.folder, spec.choice().tree.package)",
        path=[tmp_path],
        TEFL_KERNEL_BACKEND="chip",
    )
    assert done.stdout.split() == [str(tree), "chip_k.spec"]


def test_a_backend_in_this_package_is_found_by_its_folder(fresh_python, tmp_path: Path) -> None:
    package = tmp_path / "tefl"
    (package / "kernels").mkdir(parents=True)
    for source in [*(ROOT / "tefl").iterdir(), *(ROOT / "tefl" / "kernels").iterdir()]:
        target = package / source.relative_to(ROOT / "tefl")
        if not target.exists():
            os.symlink(source, target)
    tree = package / "kernels" / "backends" / "zorg" / "spec"
    tree.mkdir(parents=True)
    (tree / "__init__.py").write_text("def norm_reduce_columns(columns):\n    return 8\n")
    (tmp_path / "main.py").write_text(
        "from tefl.kernels import spec\n"
        "from tefl.kernels.triton._utils import norm_reduce_columns\n"
        "print(spec.active_backend(), spec.choice().tree.source, norm_reduce_columns(64))\n"
    )
    done = fresh_python(args=[str(tmp_path / "main.py")], TEFL_KERNEL_BACKEND="zorg")
    assert done.stdout.split() == ["zorg", "tefl", "8"]


# --- which backend ------------------------------------------------------------------------------------------

CLAIM = """
    import tefl
    from tefl.dispatch import set_active_provider
    from tefl.kernels import spec
    def claim(name):
        set_active_provider(name=name, device_name="dev", alias="cpu", arch=lambda index: None)
"""


def test_the_active_provider_selects_the_backend_of_its_name(fresh_python, tmp_path: Path) -> None:
    install(tmp_path, {"language/_chip.py": ""})
    code = (
        CLAIM
        + """
    print(spec.active_backend())
    claim("chip")
    print(spec.choice().backend, "|", spec.choice().why)
    """
    )
    lines = fresh_python(code, path=[tmp_path]).stdout.splitlines()
    assert lines == ["None", "chip | provider 'chip' is active"]


@pytest.mark.parametrize(("variable", "chosen"), [("none", "None"), ("other", "other")])
def test_the_variable_beats_the_provider(fresh_python, tmp_path: Path, variable: str, chosen: str) -> None:
    install(tmp_path, {"language/_chip.py": ""})
    install(tmp_path, {"language/_chip.py": ""}, backend="other", package="other_k")
    code = CLAIM + "    claim('chip'); print(spec.active_backend())"
    assert fresh_python(code, path=[tmp_path], TEFL_KERNEL_BACKEND=variable).stdout == f"{chosen}\n"


def test_a_provider_without_a_tree_leaves_trunk_alone(fresh_python) -> None:
    assert fresh_python(CLAIM + "    claim('plain'); print(spec.active_backend())").stdout == "None\n"


ASK = """
    from tefl.kernels.triton import _utils, language
    print(_utils.norm_reduce_columns(64), language.x)
"""


@pytest.mark.parametrize("first", ["tefl.kernels.triton._utils", "chip_k", "tefl.kernels.triton.language"])
def test_the_backends_package_may_import_trunk(fresh_python, tmp_path: Path, first: str) -> None:
    files = {
        "__init__.py": """
            def norm_reduce_columns(columns): return 8
            def extend_language(exported): exported["x"] = 3
        """
    }
    package = install(tmp_path, files).parent
    (package / "__init__.py").write_text("import tefl.kernels.triton.language\n")
    code = f"    import {first}{ASK}"
    done = fresh_python(code, path=[tmp_path], TEFL_KERNEL_BACKEND="chip", timeout=60)
    assert done.stdout == "8 3\n"


def test_threads_that_import_trunk_at_once_see_one_choice(fresh_python, tmp_path: Path) -> None:
    install(tmp_path, {"__init__.py": "def norm_reduce_columns(columns): return 8\n"})
    done = fresh_python(
        """
        import importlib, sys, threading
        import torch, triton
        import tefl
        sys.setswitchinterval(1e-6)
        names = ["ops.norm", "_utils", "language", "ops", "_utils", "language"]
        start, answers = threading.Barrier(len(names)), []
        def ask(name):
            start.wait()
            importlib.import_module(f"tefl.kernels.triton.{name}")
            from tefl.kernels.triton._utils import norm_reduce_columns
            answers.append(norm_reduce_columns(64))
        threads = [threading.Thread(target=ask, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(answers)
        """,
        path=[tmp_path],
        TEFL_KERNEL_BACKEND="chip",
    )
    assert done.stdout == f"{[8] * 6}\n"


def test_a_child_of_a_process_that_is_just_choosing_chooses_itself(fresh_python, tmp_path: Path) -> None:
    """The parent forks while a thread holds the lock of the choice."""
    install(tmp_path, {"__init__.py": "def norm_reduce_columns(columns): return 8\n"})
    done = fresh_python(
        """
        import os, threading
        from tefl.kernels import spec
        held, go = threading.Event(), threading.Event()
        def hold():
            with spec._lock:
                held.set()
                go.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if not child:
            from tefl.kernels.triton._utils import norm_reduce_columns
            os._exit(norm_reduce_columns(64))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        go.set()
        thread.join()
        print(status)
        """,
        path=[tmp_path],
        TEFL_KERNEL_BACKEND="chip",
        timeout=60,
    )
    assert done.stdout == "8\n"


def test_a_tree_of_links_is_a_tree(fresh_python, tmp_path: Path) -> None:
    tree = install(tmp_path, {})
    shared = write(
        tmp_path / "shared", {"reduce.py": trunk_file("language/reduce.py", ('"""Sums', '"""Links'))}
    )
    tree.mkdir(exist_ok=True)
    (tree / "language").symlink_to(shared)
    done = fresh_python(
        "from tefl.kernels import spec; print(spec.describe())\n"
        "from tefl.kernels.triton.language import reduce; print(reduce.__doc__)",
        path=[tmp_path],
        TEFL_KERNEL_BACKEND="chip",
    )
    assert "language/reduce.py" in done.stdout.splitlines()[0]
    assert "Links" in done.stdout.splitlines()[1]


def test_asking_for_the_backend_does_not_choose_it(fresh_python, tmp_path: Path) -> None:
    install(tmp_path, {"language/_chip.py": ""})
    code = CLAIM + "    print(spec.active_backend()); claim('chip'); print(spec.active_backend())"
    assert fresh_python(code, path=[tmp_path]).stdout.split() == ["None", "chip"]
