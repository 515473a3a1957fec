"""TE-FL's names are there for those who ask, and for nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

IS_THERE = "import importlib.util; print(importlib.util.find_spec('transformer_engine') is not None)"


def test_importing_tefl_supplies_nothing(fresh_python) -> None:
    assert fresh_python(f"import tefl, tefl.compat.transformer_engine\n{IS_THERE}").stdout == "False\n"


def test_using_tefl_without_such_a_plugin_supplies_nothing(fresh_python, plugin) -> None:
    folder = plugin(
        "plain_plugin",
        "def register(registry): assert not hasattr(registry, 'get_implementations'); registry.op_names()",
    )
    code = f"import sys, tefl\ntefl.get_manager().ensure_ready()\n{IS_THERE}\nprint(len(sys.meta_path))"
    with_plugin = fresh_python(code, path=[folder], TE_FL_PLUGIN_MODULES="plain_plugin").stdout
    assert with_plugin == fresh_python(code).stdout
    assert with_plugin.startswith("False\n")


def test_install_makes_every_module_importable_with_its_names(fresh_python) -> None:
    done = fresh_python("""
        import importlib, tefl
        from tefl.compat.transformer_engine import install
        from tefl.compat.transformer_engine._finder import MODULES
        install()
        install()
        for name in MODULES:
            module = importlib.import_module(name)
            assert all(hasattr(module, public) for public in module.__all__), name
        from transformer_engine.plugin.core import *
        from transformer_engine.plugin import core
        from transformer_engine.plugin.core import types, ops, registry, manager, policy, discovery
        assert OpImpl is types.OpImpl is core.OpImpl
        assert BackendImplKind is tefl.BackendImplKind
        print(PLUGIN_GROUP, PREFER_VENDOR, DType.kBFloat16.value)
    """)
    assert done.stdout == "te_fl.plugin vendor 6\n"


@pytest.mark.parametrize("module", ["transformer_engine.pytorch", "transformer_engine.plugin.core.backends"])
def test_what_is_not_supplied_is_not_found(core, module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{module}'"):
        __import__(module)


def test_a_name_that_is_not_supplied_is_an_import_error_that_says_which(core) -> None:
    with pytest.raises(ImportError, match="cannot import name 'NVTE_Mask_Type'"):
        from transformer_engine.plugin.core.ops import NVTE_Mask_Type  # noqa: F401
    with pytest.raises(AttributeError, match="core, as tefl supplies it, has no 'PolicyManager'"):
        _ = core.PolicyManager


def real_package(folder: Path, core: str | None = None) -> Path:
    package = folder / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text("real = True\n")
    if core is not None:
        (package / "plugin" / "core").mkdir(parents=True)
        (package / "plugin" / "__init__.py").write_text("")
        (package / "plugin" / "core" / "__init__.py").write_text(core)
    return folder


def test_where_the_real_package_is_installed_it_is_the_one_that_is_found(
    fresh_python, tmp_path: Path
) -> None:
    done = fresh_python(
        """
        from tefl.compat.transformer_engine import install
        install()
        import transformer_engine.plugin.core as core
        print(core.who)
        """,
        path=[real_package(tmp_path, "who = 'the real one'\n")],
    )
    assert done.stdout == "the real one\n"


def test_beside_a_transformer_engine_without_plugins_ours_are_supplied(fresh_python, tmp_path: Path) -> None:
    done = fresh_python(
        """
        from tefl.compat.transformer_engine import install
        install()
        import transformer_engine
        from transformer_engine.plugin.core import OpImpl
        print(transformer_engine.real, OpImpl.__module__)
        """,
        path=[real_package(tmp_path)],
    )
    assert done.stdout == "True tefl.compat.transformer_engine.types\n"
