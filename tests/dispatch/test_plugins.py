"""Plugins: how they are found, that each stands alone, and what is said of one that fails."""

from __future__ import annotations

import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tefl import OpManager
from tefl.dispatch import PluginError, PluginState

REGISTER = """
    import tefl
    calls = 0
    def {function}(registry):
        global calls
        calls += 1
        fn = lambda *args, **kwargs: "{impl_id}"
        registry.register_impl(tefl.OpImpl("{op}", "{impl_id}", "vendor", fn, vendor="p"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path for modules and distributions; what is imported from it is forgotten."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def module(folder: Path, op: str) -> Callable[..., None]:
    """Write a plugin module: a registering one, or ``code``."""

    def module(name: str, code: str = REGISTER, function: str = "register", impl_id: str = "") -> None:
        text = textwrap.dedent(code)
        for word, value in (("function", function), ("op", op), ("impl_id", impl_id or f"vendor.{name}")):
            text = text.replace("{" + word + "}", value)
        (folder / f"{name}.py").write_text(text)

    return module


@pytest.fixture
def install(folder: Path) -> Callable[[str, str], None]:
    """Make a distribution with one entry point in the group te_fl.plugin."""

    def install(name: str, value: str) -> None:
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[te_fl.plugin]\n{name} = {value}\n")

    return install


def states(manager: OpManager, *names: str) -> list[PluginState]:
    """Those of the named plugins; others may be installed beside them."""
    manager.ensure_ready()
    return [plugin for plugin in manager.plugins if plugin.name in names]


def test_a_module_named_in_the_environment_is_loaded(manager, module, op: str, set_env) -> None:
    module("acme_plugin")
    set_env(TE_FL_PLUGIN_MODULES="acme_plugin")
    assert manager.call(op) == "vendor.acme_plugin"
    (state,) = states(manager, "acme_plugin")
    assert (state.source, state.state) == ("TE_FL_PLUGIN_MODULES", "loaded")
    assert state.impl_ids == ("vendor.acme_plugin",)


@pytest.mark.parametrize("value", ["acme_installed", "acme_installed:register"])
def test_an_installed_plugin_is_found_by_its_entry_point(
    manager, module, install, op: str, value: str
) -> None:
    module("acme_installed")
    install("acme", value)
    assert manager.call(op) == "vendor.acme_installed"
    (state,) = states(manager, "acme")
    assert (state.source, state.state) == ("te_fl.plugin", "loaded")


def test_te_fl_register_is_preferred_to_register(manager, module, op: str, set_env) -> None:
    both = REGISTER + '\n    def register(registry): raise AssertionError("the other one")\n'
    module("acme_both", both, function="te_fl_register")
    set_env(TE_FL_PLUGIN_MODULES="acme_both")
    assert manager.call(op) == "vendor.acme_both"


def test_a_plugin_that_is_found_in_several_ways_is_loaded_once(
    manager, module, install, op: str, set_env
) -> None:
    module("acme_thrice")
    install("acme_module", "acme_thrice")
    install("acme_function", "acme_thrice:register")
    set_env(TE_FL_PLUGIN_MODULES="acme_thrice,acme_thrice")
    assert manager.call(op) == "vendor.acme_thrice"
    assert sys.modules["acme_thrice"].calls == 1
    found = states(manager, "acme_module", "acme_function", "acme_thrice")
    assert sorted(plugin.state for plugin in found) == ["found before", "found before", "loaded"]


def test_each_registry_gets_the_plugins(module, op: str, set_env) -> None:
    module("acme_again")
    set_env(TE_FL_PLUGIN_MODULES="acme_again")
    assert [OpManager().call(op), OpManager().call(op)] == ["vendor.acme_again"] * 2


HALF_WAY = REGISTER + '        raise RuntimeError("half way")\n'


def test_one_that_raises_half_way_leaves_nothing_registered_and_the_others_work(
    manager, registry, module, install, op: str, warnings_in
) -> None:
    module("acme_half", HALF_WAY)
    module("acme_whole")
    install("half", "acme_half")
    install("whole", "acme_whole")
    assert manager.call(op) == "vendor.acme_whole"
    assert [impl.impl_id for impl in registry.implementations(op)] == ["vendor.acme_whole"]
    half, whole = sorted(states(manager, "half", "whole"), key=lambda plugin: plugin.name)
    assert (half.state, half.impl_ids, whole.state) == ("failed", (), "loaded")
    assert "RuntimeError: half way" in (half.traceback or "")
    assert "acme_half.py" in (half.traceback or "")
    (warning,) = warnings_in("plugin 'half'")
    assert "(te_fl.plugin) was not loaded: RuntimeError: half way" in warning


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError"),
        ("raise SystemExit('leaving')", "SystemExit: leaving"),
        ("def broken(:", "SyntaxError"),
        ("x = 1", "neither te_fl_register(registry) nor register(registry)"),
    ],
)
def test_an_installed_one_that_cannot_be_imported_harms_nothing(
    manager, module, install, add, op: str, code: str, error: str, warnings_in
) -> None:
    module("acme_broken", code)
    install("broken", "acme_broken")
    add("reference.torch")
    assert manager.call(op) == "reference.torch"
    assert error in warnings_in("plugin 'broken'")[0]
    assert error in (states(manager, "broken")[0].traceback or "")


def test_an_entry_point_that_is_neither_module_nor_callable_is_reported(manager, module, install) -> None:
    module("acme_value", "plugin = 3")
    install("value", "acme_value:plugin")
    assert "a plugin must be a callable or a module, got 3" in (states(manager, "value")[0].traceback or "")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("async def register(registry): pass", "a coroutine function"),
        ("def register(registry): yield", "a generator function"),
        ("async def register(registry): yield", "an async generator function"),
        ("class R:\n    async def __call__(self, registry): pass\nregister = R()", "a coroutine function"),
    ],
)
def test_a_function_that_does_nothing_when_called_is_reported(
    manager, module, install, code: str, kind: str
) -> None:
    module("acme_later", code)
    install("later", "acme_later")
    (state,) = states(manager, "later")
    assert state.state == "failed"
    assert f"is {kind}, which registers nothing" in (state.traceback or "")


@pytest.mark.parametrize(("name", "mentioned"), [("rms_norm_fwd", True), ("softmax_fwd", False)])
def test_an_implementation_of_a_misspelt_op_is_mentioned_once(
    manager, module, install, warnings_in, name: str, mentioned: bool
) -> None:
    code = f"""
        import tefl
        def register(registry):
            registry.register_impl(tefl.OpImpl("{name}", "vendor.p", "vendor", print, vendor="p"))
    """
    module("acme_misspelt", code)
    install("misspelt", "acme_misspelt")
    manager.ensure_ready()
    manager.ensure_ready()
    wanted = [f"vendor.p implements op '{name}', which nobody declared; was 'rmsnorm_fwd' meant?"]
    assert [
        line.split("WARNING] ")[-1] for line in warnings_in("which nobody declared")
    ] == wanted * mentioned


@pytest.mark.parametrize("code", [HALF_WAY, "import no_such_module_at_all"])
def test_one_that_the_environment_names_and_that_cannot_load_is_an_error_at_each_use(
    manager, registry, module, add, op: str, set_env, code: str
) -> None:
    module("acme_named", code)
    add("reference.torch")
    set_env(TE_FL_PLUGIN_MODULES="acme_named")
    for _ in range(2):
        with pytest.raises(
            PluginError, match=r"plugin 'acme_named' \(TE_FL_PLUGIN_MODULES\) was not loaded"
        ) as e:
            manager.call(op)
        assert isinstance(e.value.__cause__, (RuntimeError, ModuleNotFoundError))
        assert registry.implementation_keys() == ((op, "reference.torch"),)
    (state,) = [plugin for plugin in manager.plugins if plugin.name == "acme_named"]
    assert state.state == "failed"


def test_after_the_environment_is_mended_the_next_use_succeeds(manager, module, op: str, set_env) -> None:
    set_env(TE_FL_PLUGIN_MODULES="acme_later")
    with pytest.raises(PluginError):
        manager.call(op)
    module("acme_later")
    assert manager.call(op) == "vendor.acme_later"


def test_a_duplicate_of_a_builtin_is_that_plugins_failure(
    manager, module, install, registry, warnings_in
) -> None:
    duplicate = """
        import tefl
        def register(registry):
            registry.register_impl(tefl.OpImpl("rmsnorm_fwd", "reference.torch", "reference", print))
    """
    module("acme_duplicate", duplicate)
    install("duplicate", "acme_duplicate")
    manager.ensure_ready()
    assert "has two implementations called 'reference.torch'" in warnings_in("plugin 'duplicate'")[0]
    assert registry.get("rmsnorm_fwd", "reference.torch").fn is not print


def test_a_plugin_may_register_with_the_process_while_it_is_imported(fresh_python, folder, module) -> None:
    module("acme_import", """
        import tefl
        tefl.get_registry().register_impl(tefl.OpImpl("mine", "vendor.a", "vendor", lambda: "a", vendor="a"))
        def register(registry): pass
    """)  # fmt: skip
    code = "import tefl; print(tefl.get_manager().call('mine'), tefl.get_manager().call('mine'))"
    assert fresh_python(code, path=[folder], TE_FL_PLUGIN_MODULES="acme_import").stdout.split() == ["a", "a"]


def test_a_plugin_that_calls_an_op_while_it_is_loaded_is_told_so(manager, module, install) -> None:
    module("acme_eager", """
        import torch
        def register(registry):
            from tests_manager import manager
            manager.call("rmsnorm_fwd", torch.ones(2, 2), torch.ones(2))
    """)  # fmt: skip
    sys.modules["tests_manager"] = type(sys)("tests_manager")
    sys.modules["tests_manager"].manager = manager
    install("eager", "acme_eager")
    try:
        (state,) = states(manager, "eager")
    finally:
        del sys.modules["tests_manager"]
    assert "an op was called while plugins are being loaded" in (state.traceback or "")


def test_a_broken_plugin_breaks_neither_import(fresh_python, folder, module, install) -> None:
    module("acme_bad", "raise RuntimeError('bad')")
    install("bad", "acme_bad")
    done = fresh_python(
        "import torch, tefl; print('imported')", path=[folder], TE_FL_PLUGIN_MODULES="acme_bad"
    )
    assert (done.stdout, done.stderr) == ("imported\n", "")


def test_plugins_are_loaded_in_a_spawned_process(fresh_python, folder: Path, module, op: str) -> None:
    module("acme_spawned")
    script = folder / "main.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing, tefl
        def work(_):
            return tefl.get_manager().call({op!r})
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [0])[0], work(0))
    """)
    )
    done = fresh_python(args=[str(script)], path=[folder], TE_FL_PLUGIN_MODULES="acme_spawned")
    assert done.stdout.split() == ["vendor.acme_spawned"] * 2


def test_an_implementation_of_a_misspelt_op_that_comes_later_is_mentioned_too(
    manager, registry, add, op: str, logged, warnings_in
) -> None:
    add("reference.torch")
    manager.call(op)
    for late in ("rms_norm_fwd", "fused_rope_forward"):
        add("vendor.p", to=late)
        for _ in range(2):
            manager.call(op)
    assert len(warnings_in("implements op 'rms_norm_fwd', which nobody declared; was 'rmsnorm_fwd'")) == 1
    said = [line for line in map(logging.LogRecord.getMessage, logged) if "not in torch.ops.tefl" in line]
    assert [line.split(": ")[1] for line in said] == [op, "fused_rope_forward"]
