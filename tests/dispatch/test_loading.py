"""Loading plugins: what it waits for, what waits for it, and who is refused instead of waiting for ever."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

HANG = 60
"""Seconds after which a test says that its process hangs."""

CALL = "torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 8), torch.ones(8))"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a module into a folder that is returned."""

    def write(name: str, code: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return tmp_path

    return write


@pytest.fixture
def install(write) -> Callable[[str, str], Path]:
    """Make a distribution with one plugin."""

    def install(name: str, value: str) -> Path:
        write(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        return write(f"{name}-1.0.dist-info/entry_points.txt", f"[te_fl.plugin]\n{name} = {value}\n")

    return install


TWO_FIRST_CALLS = f"""
    import threading, torch, tefl, steps
    failed = []
    def by_import():
        try:
            import pkg
        except Exception as error:
            failed.append(repr(error))
    def by_call():
        steps.importing.wait()
        {CALL}
    threads = [threading.Thread(target=target) for target in (by_import, by_call)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    {CALL}
    print(failed, [p.state for p in tefl.get_manager().plugins if p.name == "pkg"])
"""
STEPS = """
    import sys, threading, time
    importing = threading.Event()
    def wait_until_loading_waits_for_an_import():
        importing.set()
        import tefl
        loading = tefl.dispatch.loading
        while not any(map(loading._module_lock, sys._current_frames().values())):
            time.sleep(0.01)
"""


def test_a_first_call_from_an_import_that_loading_waits_for_is_served_by_what_is_there(
    fresh_python, write, install
) -> None:
    write("steps.py", STEPS)
    write("pkg/plugin.py", "import pkg\ndef register(registry): pass")
    folder = write("pkg/__init__.py", f"""
        import torch, tefl, steps
        if not steps.importing.is_set():
            steps.wait_until_loading_waits_for_an_import()
            {CALL}
    """)  # fmt: skip
    install("pkg", "pkg.plugin")
    done = fresh_python(TWO_FIRST_CALLS, path=[folder], timeout=HANG)
    assert done.stdout.split() == ["[]", "['loaded']"]
    said = "an op was called by the import of 'pkg', which another thread waits for to load plugins; it is"
    assert done.stderr.count(said) == 1


def test_a_call_of_another_manager_from_such_an_import_is_served_by_the_built_in_ones(
    fresh_python, write, install
) -> None:
    write("steps.py", STEPS)
    write("pkg/plugin.py", """
        import pkg, tefl
        def register(registry):
            registry.register_impl(tefl.OpImpl("mine", "vendor.p", "vendor", print, vendor="p"))
    """)  # fmt: skip
    folder = write("pkg/__init__.py", """
        import torch, tefl, steps
        other = tefl.OpManager()
        def call(): return tuple(other.call("rmsnorm_fwd", torch.ones(2, 8), torch.ones(8))[0].shape)
        if not steps.importing.is_set():
            steps.wait_until_loading_waits_for_an_import()
            print(call(), call(), "vendor.p" in other.registry.impl_ids())
    """)  # fmt: skip
    install("pkg", "pkg.plugin")
    code = (
        TWO_FIRST_CALLS
        + """
    import pkg
    print(pkg.call(), "vendor.p" in pkg.other.registry.impl_ids())
    """
    )
    done = fresh_python(code, path=[folder], timeout=HANG)
    assert done.stdout.splitlines() == ["(2, 8) (2, 8) False", "[] ['loaded']", "(2, 8) True"]
    assert done.stderr.count("it is served by what is registered so far") == 1


def test_a_plugin_that_fails_after_such_a_call_is_still_an_error_of_the_next(fresh_python, write) -> None:
    write("steps.py", STEPS)
    write("pkg/plugin.py", "import pkg\nraise ValueError('broken')")
    folder = write("pkg/__init__.py", f"""
        import torch, tefl, steps
        steps.wait_until_loading_waits_for_an_import()
        {CALL}
    """)  # fmt: skip
    code = TWO_FIRST_CALLS.replace(f"    {CALL}\n    print", "    print")
    code += f"""
    try:
        {CALL}
    except tefl.dispatch.PluginError as error:
        print(error)
    """
    done = fresh_python(code, path=[folder], timeout=HANG, TE_FL_PLUGIN_MODULES="pkg.plugin")
    assert done.stdout.startswith("[]")
    assert "plugin 'pkg.plugin' (TE_FL_PLUGIN_MODULES) was not loaded: ValueError: broken" in done.stdout


def test_a_registration_that_imports_waits_for_an_import_that_registers(fresh_python, write, install) -> None:
    write("steps.py", STEPS)
    write("eager.py", """
        import tefl, steps
        steps.wait_until_loading_waits_for_an_import()
        tefl.get_registry().register_impl(tefl.OpImpl("mine", "vendor.e", "vendor", print, vendor="e"))
    """)  # fmt: skip
    folder = write("lazy.py", """
        def register(registry):
            import eager, tefl
            registry.register_impl(tefl.OpImpl("mine", "vendor.l", "vendor", print, vendor="l"))
    """)  # fmt: skip
    install("lazy", "lazy")
    code = (
        TWO_FIRST_CALLS.replace("import pkg", "import eager")
        + """
    print(tefl.get_registry().impl_ids())
    """
    )
    done = fresh_python(code, path=[folder], timeout=HANG)
    assert done.stdout.startswith("[] ")
    assert "'vendor.e', 'vendor.l'" in done.stdout


def test_a_first_call_from_an_import_that_nothing_waits_for_waits_for_loading(
    fresh_python, write, install
) -> None:
    write("warm.py", f"import torch, tefl\n{CALL}\ndone = True")
    folder = write("slow.py", """
        import threading, time
        started, go_on = threading.Event(), threading.Event()
        def register(registry):
            started.set()
            go_on.wait()
            time.sleep(0.2)
    """)  # fmt: skip
    install("slow", "slow")
    code = f"""
        import threading, torch, tefl, slow
        first = threading.Thread(target=lambda: {CALL})
        first.start()
        slow.started.wait()
        slow.go_on.set()
        import warm
        print(warm.done)
        first.join()
    """
    assert fresh_python(code, path=[folder], timeout=HANG).stdout.split() == ["True"]


def test_what_a_plugin_registers_is_seen_by_others_when_all_are_loaded(fresh_python, write, install) -> None:
    folder = write("half.py", """
        import threading, tefl
        seen = []
        def register(registry):
            registry.register_impl(tefl.OpImpl("mine", "vendor.h", "vendor", print, vendor="h"))
            look = lambda: seen.append(tefl.get_registry().impl_ids())
            look()
            other = threading.Thread(target=look)
            other.start()
            other.join()
    """)  # fmt: skip
    install("half", "half")
    code = """
        import tefl, half
        tefl.get_manager().ensure_ready()
        print(["vendor.h" in ids for ids in (*half.seen, tefl.get_registry().impl_ids())])
    """
    done = fresh_python(code, path=[folder], timeout=HANG)
    assert done.stdout.strip() == "[True, False, True]"


def test_what_others_register_meanwhile_stays(registry, add, op: str) -> None:
    add("vendor.early")
    with registry.transaction(for_all=True):
        add("vendor.mine")
        registry.unregister("vendor.early")
        other = threading.Thread(target=add, args=("vendor.theirs",))
        other.start()
        other.join()
    assert sorted(impl_id for _, impl_id in registry.implementation_keys()) == [
        "vendor.mine",
        "vendor.theirs",
    ]


def test_the_same_registered_by_others_meanwhile_is_an_error_that_changes_nothing(registry, add) -> None:
    def add_meanwhile() -> None:
        with registry.transaction(for_all=True):
            add("vendor.a")
            add("vendor.b")
            other = threading.Thread(target=add, args=("vendor.a",))
            other.start()
            other.join()

    with pytest.raises(ValueError, match=r"has two implementations called 'vendor\.a'"):
        add_meanwhile()
    assert registry.impl_ids() == ("vendor.a",)


NEW_MANAGER = """
    import torch, tefl
    def register(registry):
        {before}
        tefl.OpManager().call("rmsnorm_fwd", torch.ones(2, 8), torch.ones(8))
"""


@pytest.mark.parametrize("before", ["", "import transformer_engine.plugin.core"])
def test_a_plugin_that_calls_by_a_manager_of_its_own_fails_alone(
    fresh_python, write, install, before: str
) -> None:
    folder = write("nested.py", NEW_MANAGER.replace("{before}", before))
    install("nested", "nested")
    code = f"""
        import sys, torch, tefl
        for _ in range(2):
            print(tuple({CALL}[0].shape))
        (plugin,) = [p for p in tefl.get_manager().plugins if p.name == "nested"]
        finders = [type(finder).__name__ for finder in sys.meta_path]
        print(plugin.state, plugin.error, finders.count("_Finder"))
    """
    done = fresh_python(code, path=[folder], timeout=HANG)
    said = "an op was called while plugins are being loaded; call it after registration"
    assert done.stdout.splitlines() == ["(2, 8)", "(2, 8)", f"failed {said} {1 if before else 0}"]


def test_the_names_for_plugins_may_be_supplied_twice_at_a_time(fresh_python) -> None:
    code = """
        import sys
        from tefl.compat.transformer_engine import for_plugins
        from tefl.compat.transformer_engine._finder import FINDER
        with for_plugins():
            with for_plugins():
                pass
            print(FINDER in sys.meta_path)
        print(FINDER in sys.meta_path)
    """
    assert fresh_python(code).stdout.split() == ["True", "False"]


def test_a_call_inside_a_transaction_waits_for_loading_and_loading_not_for_the_transaction(
    fresh_python, write
) -> None:
    folder = write("steps.py", """
        import threading
        loading, inside = threading.Event(), threading.Event()
    """)  # fmt: skip
    write("slow.py", "import steps\ndef register(registry): steps.loading.set(); steps.inside.wait()\n")
    code = f"""
        import threading, torch, tefl, steps
        def first():
            {CALL}
        def inside():
            with tefl.get_registry().transaction():
                steps.loading.wait()
                steps.inside.set()
                {CALL}
        threads = [threading.Thread(target=target) for target in (first, inside)]
        threads[1].start(); threads[0].start()
        for thread in threads: thread.join()
        {CALL}
        print("done")
    """
    done = fresh_python(code, path=[folder], timeout=HANG, TE_FL_PLUGIN_MODULES="slow")
    assert done.stdout.split() == ["done"]


def test_a_transaction_in_which_plugins_are_loaded_and_that_fails_leaves_them_loaded(
    fresh_python, write, install
) -> None:
    write("p.py", """
        import tefl
        def register(registry):
            registry.register_impl(tefl.OpImpl("mine", "vendor.p", "vendor", print, vendor="p"))
    """)  # fmt: skip
    folder = install("p", "p")
    code = f"""
        import torch, tefl
        try:
            with (registry := tefl.get_registry()).transaction():
                registry.register_impl(tefl.OpImpl("mine", "vendor.t", "vendor", print, vendor="t"))
                {CALL}
                print([name in registry.impl_ids() for name in ("vendor.p", "vendor.t")])
                raise ArithmeticError
        except ArithmeticError:
            print([name in registry.impl_ids() for name in ("vendor.p", "vendor.t")])
        {CALL}
    """
    done = fresh_python(code, path=[folder], timeout=HANG)
    assert done.stdout.splitlines() == ["[True, True]", "[True, False]"]


def test_what_a_reader_of_the_draft_registers_is_seen_by_it_and_by_all_later(registry, add, op: str) -> None:
    add("vendor.there", vendor="there")
    with registry.transaction(for_all=True):
        add("vendor.drafted", vendor="drafted")
        seen: list[set[str]] = []

        def reader() -> None:
            assert registry.look_into_loading()
            add("vendor.own", vendor="own")
            seen.append({impl.impl_id for impl in registry.implementations(op)})

        thread = threading.Thread(target=reader)
        thread.start()
        thread.join()
        assert seen == [{"vendor.there", "vendor.drafted", "vendor.own"}]
    assert set(registry.impl_ids()) == {"vendor.there", "vendor.drafted", "vendor.own"}
