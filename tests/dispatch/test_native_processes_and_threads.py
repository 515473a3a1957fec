"""Remembered calls under threads that change policies and registries, and across forks."""

from __future__ import annotations

import pytest

from tefl.dispatch.native import is_attached

pytestmark = pytest.mark.skipif(not is_attached(), reason="tests the compiled router, which was not built")

PRELUDE = """
    import os, signal, sys, threading, time
    import torch, tefl
    sys.setswitchinterval(1e-5)
    x, w = torch.ones(2, 4), torch.ones(4)
    registry = tefl.get_registry()
    def answering(number):
        return lambda input, *_, **__: (torch.full_like(input, number), input.new_ones(input.shape[:-1]))
    def impl(name, number, priority=200):
        fn = answering(number)
        return tefl.OpImpl("rmsnorm_fwd", f"vendor.{name}", "vendor", fn, vendor=name, priority=priority)
    def answer():
        return float(torch.ops.tefl.rmsnorm_fwd(x, w)[0][0, 0])
    tefl.set_global_policy(tefl.SelectionPolicy(prefer="vendor"))
"""


def test_threads_always_get_an_implementation_that_was_registered_and_allowed(fresh_python) -> None:
    done = fresh_python(
        PRELUDE
        + """
    registry.register_impl(impl("one", 1))
    stop, wrong, calls = threading.Event(), [], []
    def call():
        count = 0
        try:
            while not stop.is_set():
                if (got := answer()) not in (1, 2): wrong.append(got)
                with tefl.with_denied_vendors("one", "two"):
                    if not 0.99 < (got := answer()) < 1.01: wrong.append(got)
                leaf = torch.ones(2, 4, requires_grad=True)
                with tefl.with_preference("reference"):
                    torch.ops.tefl.rmsnorm_fwd(leaf, w)[0].sum().backward()
                torch.ops.tefl.rmsnorm_fwd(torch.ones(count % 100, 4), w)
                count += 1
        except BaseException as error:
            wrong.append(repr(error))
        calls.append(count)
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads: thread.start()
    end = time.monotonic() + 4
    while time.monotonic() < end:
        registry.register_impl(impl("two", 2, 300))
        assert answer() == 2
        registry.unregister("vendor.two")
        assert answer() == 1
        tefl.set_global_policy(tefl.SelectionPolicy(prefer="vendor", deny_vendors=["nobody"]))
        with tefl.record(): pass
    stop.set()
    for thread in threads: thread.join()
    print(wrong, min(calls) > 10)
    """,
        TEFL_LOG_LEVEL="ERROR",
    )
    assert done.stdout.strip() == "[] True"


def test_a_failure_on_one_thread_is_remembered_for_all(fresh_python) -> None:
    done = fresh_python(
        PRELUDE
        + """
    lock, started = threading.Lock(), threading.Barrier(4)
    for round in range(30):
        tries = []
        def flaky(input, weight, eps, **_):
            tries.append(1)
            if len(tries) > 200: raise RuntimeError("boom")
            return input * 0 + 1, input.new_ones(2)
        registry.register_many([
            tefl.OpImpl("rmsnorm_fwd", "vendor.flaky", "vendor", flaky, vendor="flaky", priority=900),
            impl("two", 2),
        ])
        def call():
            started.wait()
            for _ in range(100): answer()
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        # At most one failing call of each thread was under way when the first one failed.
        assert 200 < len(tries) <= 204, len(tries)
        assert answer() == 2
        registry.unregister("vendor.flaky"); registry.unregister("vendor.two")
    print("ok")
    """,
        TEFL_LOG_LEVEL="ERROR",
    )
    assert done.stdout.strip() == "ok"


def test_children_forked_while_threads_call_go_on_calling(fresh_python) -> None:
    done = fresh_python(
        PRELUDE
        + """
    registry.register_impl(impl("one", 1))
    answer(); answer()
    stop = threading.Event()
    def call():
        while not stop.is_set():
            answer()
            with tefl.with_preference("reference"): torch.ops.tefl.rmsnorm_fwd(torch.ones(3, 4), w)
            tefl.reset_global_policy(); tefl.set_global_policy(tefl.SelectionPolicy(prefer="vendor"))
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads: thread.start()
    states = []
    for _ in range(30):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            tefl.set_global_policy(tefl.SelectionPolicy(prefer="vendor"))
            ok = answer() == 1 and answer() == 1
            registry.register_impl(impl("two", 2, 300))
            os._exit(0 if ok and answer() == 2 and answer() == 2 else 1)
        states.append(os.waitpid(child, 0)[1])
    stop.set()
    for thread in threads: thread.join()
    print(set(states), answer())
    """,
        TEFL_LOG_LEVEL="ERROR",
    )
    assert done.stdout.strip() == "{0} 1.0"


def test_a_process_ends_cleanly_whatever_its_threads_have_called(fresh_python) -> None:
    """But for daemon threads that are still inside an op: torch itself aborts then, for torch.add as well."""
    done = fresh_python(
        PRELUDE
        + """
    registry.register_impl(impl("one", 1))
    def call(times):
        for _ in range(times): answer()
    for _ in range(20):
        thread = threading.Thread(target=call, args=(3,)); thread.start(); thread.join()
        registry.register_impl(impl("two", 2, 300)); registry.unregister("vendor.two")
    leaf = torch.ones(2, 4, requires_grad=True)
    kept = torch.ops.tefl.rmsnorm_fwd(leaf, w)[0]  # a graph that outlives the interpreter's end
    kept.sum().backward(retain_graph=True)
    print("end")
    """,
        TEFL_LOG_LEVEL="ERROR",
    )
    assert done.stdout.strip() == "end"
    assert "Fatal" not in done.stderr
