"""A vendor's `register_kernels`: what it may do, and who need not wait for it."""

from __future__ import annotations

import textwrap

HANG = 60
"""Seconds after which a test says that its process hangs."""

STEPS = """
    import sys, threading, time
    importing, registering = threading.Event(), threading.Event()
    def wait_until_another_waits_for_this_import():
        importing.set()
        import tefl
        waits = tefl.dispatch.loading._module_lock
        while not any(map(waits, sys._current_frames().values())):
            time.sleep(0.01)
"""


def test_what_it_imports_may_be_imported_elsewhere_by_code_that_calls_ops(fresh_python, tmp_path):
    (tmp_path / "steps.py").write_text(textwrap.dedent(STEPS))
    (tmp_path / "warm.py").write_text(
        textwrap.dedent("""
        import torch, tefl, steps
        steps.wait_until_another_waits_for_this_import()
        shape = torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 8), torch.ones(8))[0].shape
        tefl.get_registry().register_impl(tefl.OpImpl("mine", "vendor.w", "vendor", print, vendor="w"))
        """)
    )
    out = fresh_python(
        """
        import threading, torch, tefl, steps
        from tefl.privateuse1 import PrivateUse1Backend, register_backend
        def register():
            steps.importing.wait()
            tefl.get_registry().register_impl(tefl.OpImpl("mine", "vendor.v", "vendor", print, vendor="v"))
            import warm
        def other():
            import warm
        thread = threading.Thread(target=other)
        thread.start()
        register_backend(PrivateUse1Backend("maca", "sim", register_kernels=register))
        thread.join()
        import warm
        print(tuple(warm.shape), torch.ones(2, device="maca").sum().item())
        print([name in tefl.get_registry().impl_ids() for name in ("vendor.v", "vendor.w")])
        """,
        PYTHONPATH=str(tmp_path),
        timeout=HANG,
    )
    assert out.splitlines() == ["(2, 8) 2.0", "[True, True]"]


def test_one_that_calls_an_op_and_then_fails_leaves_the_ops_as_they_were(fresh_python):
    out = fresh_python(
        """
        import torch, tefl
        from tefl.privateuse1 import PrivateUse1Backend, register_backend
        def call():
            return tuple(torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 8), torch.ones(8))[0].shape)
        def register():
            tefl.get_registry().register_impl(tefl.OpImpl("mine", "vendor.v", "vendor", print, vendor="v"))
            print(call())
            raise ValueError("broken")
        try:
            register_backend(PrivateUse1Backend("maca", "sim", register_kernels=register))
        except RuntimeError as error:
            print("broken" in str(error))
        print(call(), "vendor.v" in tefl.get_registry().impl_ids())
        """
    )
    assert out.splitlines() == ["(2, 8)", "True", "(2, 8) False"]
