"""Memory that faults: the simulator tells what host code touched device memory, and lets the rest pass."""

from __future__ import annotations

import re
import signal
from textwrap import dedent

import pytest
from sim_driver import LIBRARY

CLAIM = """
import ctypes, torch
from tefl.privateuse1 import PrivateUse1Backend, as_alias, register_backend
register_backend(PrivateUse1Backend("maca", "sim"))
def peek(tensor):
    return ctypes.string_at(tensor.data_ptr(), 4)
"""
STRAY = (
    r"tefl sim: host code touched device memory at 0x\w+, "
    r"which is byte (\d+) of the (\d+) bytes allocated at "
)


def run(python, code: str, **mode: str):
    return python.run(CLAIM + dedent(code), **mode)


@pytest.mark.parametrize(
    ("mode", "remedy"),
    [("TEFL_SIM_CHECKED", r"take tefl\.privateuse1\.as_alias\(tensor\)"), ("TEFL_SIM_OPAQUE", r"\.cpu\(\)")],
)
def test_a_stray_access_ends_the_process_and_says_what_was_touched(python, mode, remedy):
    done = run(
        python,
        """
        x = torch.ones(8, device="maca:1")
        print("before", flush=True)
        peek(x)
        """,
        **{mode: "1"},
    )
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout == "before\n"
    (place,) = re.findall(STRAY + r"0x\w+ on device 1", done.stderr)
    assert 0 <= int(place[0]) < int(place[1])
    assert f"{mode}=1" in done.stderr
    assert re.search(remedy, done.stderr)


def test_a_handler_that_was_there_before_still_runs(python):
    done = run(
        python,
        """
        import faulthandler
        faulthandler.enable()
        def named_function():
            peek(torch.ones(8, device="maca"))
        named_function()
        """,
        TEFL_SIM_CHECKED="1",
    )
    assert re.search(STRAY, done.stderr)
    assert "named_function" in done.stderr
    assert done.returncode == -signal.SIGSEGV


def test_a_fault_elsewhere_is_not_called_device_memory(python):
    done = run(python, "torch.ones(8, device='maca'); ctypes.string_at(8)", TEFL_SIM_CHECKED="1")
    assert done.returncode == -signal.SIGSEGV
    assert "tefl sim" not in done.stderr


def test_an_alias_opens_the_memory_for_as_long_as_it_lives(python):
    done = run(
        python,
        """
        x = torch.ones(8, device="maca")
        alias = as_alias(x)
        view = alias[2:]
        del alias
        assert peek(x) == peek(torch.ones(1)) and view.sum().item() == 6
        view.add_(1)
        del view
        assert x.sum().item() == 14
        print("alias is gone", flush=True)
        peek(x)
        """,
        TEFL_SIM_CHECKED="1",
    )
    assert done.stdout == "alias is gone\n"
    assert re.search(STRAY, done.stderr)


def test_sections_of_several_threads_overlap(python):
    out = run(
        python,
        """
        import threading
        x = torch.zeros(8, 1000, device="maca")
        def work(row):
            for i in range(200):
                x[row].add_(1)
                as_alias(x)[row, 0].item()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        [t.start() for t in threads], [t.join() for t in threads]
        print(x.unique().tolist(), flush=True)
        peek(x)
        """,
        TEFL_SIM_CHECKED="1",
    )
    assert out.stdout == "[200.0]\n"
    assert re.search(STRAY, out.stderr)


def test_pinned_and_host_memory_are_not_guarded(python):
    done = run(
        python,
        """
        pinned = torch.ones(8).pin_memory()
        torch.ones(8, device="maca").copy_(pinned, non_blocking=True)
        assert pinned.is_pinned() and peek(pinned) == peek(torch.ones(8))
        print("ok")
        """,
        TEFL_SIM_CHECKED="1",
    )
    assert done.stdout == "ok\n"


def test_a_model_trains_in_checked_memory(python):
    done = run(
        python,
        """
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                                    torch.nn.Flatten(), torch.nn.Linear(288, 4)).to("maca:1")
        attention = torch.nn.MultiheadAttention(4, 2, batch_first=True).to("maca:1")
        optimizer = torch.optim.AdamW([*model.parameters(), *attention.parameters()], lr=1e-2)
        x = torch.randn(5, 3, 8, 8, device="maca:1")
        losses = []
        for _ in range(8):
            h = model(x)[None]
            target = torch.tensor([0, 1, 2, 3, 0], device="maca:1")
            loss = torch.nn.functional.cross_entropy(attention(h, h, h)[0][0], target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        indices = torch.nonzero(x > 0)
        assert x[indices[:, 0], indices[:, 1], indices[:, 2], indices[:, 3]].min().item() > 0
        torch.empty(0, device="maca").resize_(100).fill_(2)
        lazy = torch._lazy_clone(x)
        lazy.add_(1)
        assert torch.equal(lazy.cpu(), x.cpu() + 1)
        print(losses[-1] < losses[0])
        """,
        TEFL_SIM_CHECKED="1",
    )
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


@pytest.mark.parametrize("mode", ["TEFL_SIM_CHECKED", "TEFL_SIM_OPAQUE"])
def test_kernels_reach_the_memory_of_their_own_device(python, image, tmp_path, mode):
    (tmp_path / "kernels.so").write_bytes(image)
    out = python(
        f"""
        from ctypes import c_int32, c_void_p
        from sim_driver import Kernels, Sim
        sim, image = Sim(), open({str(tmp_path / "kernels.so")!r}, "rb").read()
        kernels, stream, block, out = Kernels(sim, image, 0), sim.stream(), sim.malloc(0, 4), c_int32(0)
        kernels("store", stream, block, c_int32(7))
        sim.copy(c_void_p(__import__("ctypes").addressof(out)), -1, block, 0, 4, stream)
        sim.synchronize(stream)
        print(out.value)
        """,
        **{mode: "1"},
    )
    assert out == "7"


def test_a_copy_from_where_no_allocation_is_gets_refused(python):
    out = python(
        """
        from ctypes import c_void_p
        from sim_driver import Sim, SimError
        sim = Sim()
        block = sim.malloc(0, 16)
        for pointer, size in ((block, 17), (c_void_p(4096), 4)):
            try:
                sim.fill(pointer, 0, size, sim.stream())
            except SimError as error:
                print(error)
        """,
        TEFL_SIM_CHECKED="1",
    ).splitlines()
    assert out == [
        f"memset_async: {size} bytes from the pointer on do not lie in an allocation of device 0"
        for size in (17, 4)
    ]


def test_sections_are_counted_and_closed_once(python):
    out = python(
        """
        import ctypes
        from ctypes import c_size_t
        from sim_driver import Sim, SimError
        sim = Sim()
        block = sim.malloc(0, 16)
        for name in ("begin", "begin", "end", "write", "end", "end"):
            try:
                if name == "write":
                    ctypes.memset(block, 1, 16)
                else:
                    sim.call("host_access_" + name, 0, block, c_size_t(16))
            except SimError as error:
                print(error)
        print(sim.runtime.host_access_begin is not None)
        """,
        TEFL_SIM_CHECKED="1",
    )
    assert out.splitlines() == ["host_access_end: host_access_end without a begin", "True"]


def test_unguarded_the_provider_asks_for_no_sections(sim):
    assert sim.runtime.host_access_begin is None
    assert sim.runtime.host_access_end is None


@pytest.mark.parametrize("variable", ["TEFL_SIM_CHECKED", "TEFL_SIM_OPAQUE"])
def test_a_bad_switch_is_quoted(python, variable):
    code = (
        "from sim_driver import Sim, SimError\ntry:\n    Sim()\nexcept SimError as error:\n    print(error)"
    )
    assert python(code, **{variable: "yes"}) == f"init: {variable}='yes': want 0 or 1"


REFUSING = """
#include <dlfcn.h>
#include "tefl_provider.h"
int refuses;
static const tefl_provider* sim;
static tefl_runtime runtime;
static tefl_provider provider;
static tefl_status begin(int32_t device, void* pointer, size_t bytes) {
  return refuses ? TEFL_ERR_DEVICE : sim->runtime->host_access_begin(device, pointer, bytes);
}
const tefl_provider* tefl_provider_get(void) {
  if (sim != 0) return &provider;
  void* library = dlopen("LIBRARY", RTLD_NOW);
  sim = ((const tefl_provider* (*)(void))dlsym(library, "tefl_provider_get"))();
  runtime = *sim->runtime;
  runtime.host_access_begin = begin;
  provider = *sim;
  provider.runtime = &runtime;
  return &provider;
}
"""


def test_a_refusal_at_the_end_of_a_call_is_a_warning(python, compile_library):
    """The call is done; what its kernel keeps of an argument is all that the host may not use."""
    source = REFUSING.replace("LIBRARY", str(LIBRARY))
    path = compile_library("refusing", source, "-ldl")
    done = python.run(
        f"""
        import ctypes, torch
        from tefl.privateuse1 import PrivateUse1Backend, register_backend
        register_backend(PrivateUse1Backend("maca", {str(path)!r}))
        refuses, kept = ctypes.c_int.in_dll(ctypes.CDLL({str(path)!r}), "refuses"), []
        def copy(into, source, non_blocking=False):
            kept.append(source)
            refuses.value = 1
            return into
        x, y = torch.ones(8, device="maca"), torch.zeros(8, dtype=torch.float64, device="maca")
        library = torch.library.Library("aten", "IMPL")
        library.impl("copy_", copy, "CPU", allow_override=True)
        y.copy_(x)
        library._destroy()
        refuses.value = 0
        print(kept[0].nbytes, x.sum().item())
        """,
        TEFL_SIM_CHECKED="1",
    )
    assert (done.stdout.split(), done.returncode) == (["32", "8.0"], 0)
    assert (
        "the host may not use what a kernel has kept of an argument: maca: host_access_begin" in done.stderr
    )
