"""Threads that race, processes that fork or are spawned: one manager, no second registration, no hang."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

SLOW_PLUGIN = """
    import sys, time
    import tefl
    loading = False
    loads = 0
    def register(registry):
        global loading, loads
        loading, loads = True, loads + 1
        time.sleep({seconds})
        registry.register_impl(tefl.OpImpl("slow", "vendor.slow", "vendor", lambda: "slow", vendor="slow"))
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A folder with the module ``slow_plugin``, which takes a while to register."""
    (tmp_path / "slow_plugin.py").write_text(textwrap.dedent(SLOW_PLUGIN.replace("{seconds}", "0.5")))
    return tmp_path


def test_threads_that_race_on_first_use_see_one_manager_and_one_load(fresh_python, plugin: Path) -> None:
    done = fresh_python(
        """
        import threading, tefl
        barrier, seen = threading.Barrier(8), []
        def work():
            barrier.wait()
            seen.append((id(tefl.get_manager()), tefl.get_manager().call("slow")))
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        import slow_plugin
        print(len(seen), len(set(seen)), slow_plugin.loads)
        """,
        path=[plugin],
        TE_FL_PLUGIN_MODULES="slow_plugin",
    )
    assert done.stdout.split() == ["8", "1", "1"]
    assert done.stderr.count("Registered impl_ids") == 1
    assert done.stderr.count("Op 'slow' using") == 1


def test_a_forked_child_goes_on_with_what_its_parent_had_and_registers_nothing_again(fresh_python) -> None:
    done = fresh_python(
        """
        import os, torch, tefl
        x, w = torch.ones(2, 4), torch.ones(4)
        with tefl.with_preference("reference"):
            torch.ops.tefl.rmsnorm_fwd(x, w)
            before = tefl.get_registry().implementation_keys()
            if os.fork() == 0:
                torch.ops.tefl.rmsnorm_fwd(x, w)
                assert tefl.dispatch.policy.current_policy().prefer == "reference"
                assert tefl.get_registry().implementation_keys() == before
                os._exit(0)
            print(os.wait()[1])
        """
    )
    assert done.stdout.split() == ["0"]
    assert done.stderr.count("Registered impl_ids") == 1


def test_a_child_that_is_forked_before_first_use_makes_its_own_start(fresh_python) -> None:
    done = fresh_python(
        """
        import os, torch, tefl
        for _ in range(2):
            if os.fork() == 0:
                torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4))
                os._exit(0)
            print(os.wait()[1])
        """
    )
    assert done.stdout.split() == ["0", "0"]
    assert done.stderr.count("Registered impl_ids") == 2


FORK_WHILE_LOADING = """
    import os, signal, sys, threading, time
    import tefl
    if {patience} is not None:
        tefl.dispatch.loading.LOADING._patience_s = {patience}
    first = threading.Thread(target=lambda: tefl.get_manager().call("slow"))
    first.start()
    while not getattr(sys.modules.get("slow_plugin"), "loading", False):
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        assert tefl.get_manager().call("slow") == "slow"
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    first.join()
    print(tefl.get_manager().call("slow"))
"""


def test_a_fork_while_another_thread_loads_plugins_waits_for_it(fresh_python, plugin: Path) -> None:
    code = FORK_WHILE_LOADING.replace("{patience}", "None")
    done = fresh_python(code, path=[plugin], TE_FL_PLUGIN_MODULES="slow_plugin")
    assert done.stdout.split() == ["0", "slow"]
    assert done.stderr.count("Registered impl_ids") == 1


def test_a_fork_that_cannot_wait_gives_the_child_a_whole_registry_all_the_same(
    fresh_python, plugin: Path
) -> None:
    code = FORK_WHILE_LOADING.replace("{patience}", "0.01")
    done = fresh_python(code, path=[plugin], TE_FL_PLUGIN_MODULES="slow_plugin")
    assert done.stdout.split() == ["0", "slow"]
    assert done.stderr.count("Registered impl_ids") == 2  # the child's and the parent's


def test_forked_workers_of_a_data_loader_call_ops(fresh_python) -> None:
    done = fresh_python(
        """
        import torch, tefl
        from torch.utils.data import DataLoader, Dataset
        class Rows(Dataset):
            def __len__(self): return 4
            def __getitem__(self, i):
                return torch.ops.tefl.rmsnorm_fwd(torch.full((1, 4), float(i + 1)), torch.ones(4))[0]
        torch.ops.tefl.rmsnorm_fwd(torch.ones(1, 4), torch.ones(4))
        loader = DataLoader(Rows(), num_workers=2, multiprocessing_context="fork")
        print(sum(float(batch.sum()) for batch in loader))
        """
    )
    assert float(done.stdout) == pytest.approx(16.0, rel=1e-4)


def test_a_registry_that_changes_under_running_calls_never_shows_half_a_change(fresh_python) -> None:
    done = fresh_python(
        """
        import threading, tefl
        registry = tefl.OpRegistry()
        manager = tefl.OpManager(registry)
        make = lambda i, p: tefl.OpImpl("op", i, "flagos", lambda: i, priority=p)
        registry.register_impl(make("default.base", 0))
        stop, wrong = threading.Event(), []
        def call():
            while not stop.is_set():
                try:
                    if manager.call("op") not in ("default.base", "default.b"): wrong.append("half")
                except Exception as error:
                    wrong.append(repr(error))
        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads: thread.start()
        for _ in range(300):
            registry.register_many([make("default.a", 1), make("default.b", 2)])
            with registry.transaction():
                registry.unregister("default.a")
                registry.unregister("default.b")
        stop.set()
        for thread in threads: thread.join()
        print(wrong)
        """
    )
    assert done.stdout.strip() == "[]"
