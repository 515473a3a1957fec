"""The module torch.<name>: what torch.cuda is to CUDA devices."""

from __future__ import annotations

import re

import pytest
import torch
from claimed import PROVIDER

PRELUDE = """
import sys, threading
import torch
from claimed import claim
claim(DTYPE)
m = torch.maca
"""
BF16, NOT_DECLARED = PRELUDE.replace("DTYPE", "torch.bfloat16"), PRELUDE.replace("DTYPE", "None")


def test_the_module_can_be_imported_under_both_names_and_is_found_by_torch(python):
    out = python(
        BF16
        + """
import torch.maca as first, torch_maca as second
print(first is m, second is m, torch.get_device_module("maca") is m, m.__name__)
from torch.maca.amp import autocast, GradScaler
import torch.maca.memory, torch.maca.random
print(sorted(name for name in m.__all__ if not callable(getattr(m, name))))
"""
    )
    graphs = ["graphs"] if PROVIDER == "cuda" else []
    parts = ["amp", "default_generators", *graphs, "memory", "random", "streams"]
    assert out.splitlines() == ["True True True torch.maca", str(parts)]


@pytest.mark.needs_two_devices
def test_tensors_modules_and_storages_move_by_the_devices_name(python):
    out = python(
        BF16
        + """
x, linear = torch.ones(2).maca(), torch.nn.Linear(2, 2).maca()
print(x.is_maca, torch.ones(1).is_maca, x.maca(1).device, linear.weight.device, x.untyped_storage().is_maca)
"""
    )
    assert out == "True False maca:1 maca:0 True"


@pytest.mark.needs_two_devices
def test_the_current_device_is_the_threads_and_contexts_restore_it(python):
    out = python(
        BF16
        + """
seen = [m.current_device()]
with m.device(1):
    seen += [m.current_device(), torch.ones(1, device="maca").get_device()]
    with m.device("maca:0"), m.device(None), m.device("maca"):
        seen.append(m.current_device())
    with m.device_of(torch.ones(1, device="maca:0")), m.device_of(torch.ones(1)):
        seen.append(m.current_device())
    seen.append(m.current_device())
    thread = threading.Thread(target=lambda: seen.append(("thread", m.current_device())))
    thread.start(); thread.join()
seen.append(m.current_device())
m.set_device(torch.device("maca", 1)); seen.append(m.current_device())
print(seen)
"""
    )
    assert out == "[0, 1, 1, 0, 0, 1, ('thread', 0), 0, 1]"


@pytest.mark.needs_two_devices
def test_a_context_of_a_device_may_be_entered_again_and_decorate(python):
    out = python(
        BF16
        + """
seen, on_one = [], m.device(1)
with on_one, on_one:
    seen.append(m.current_device())
seen.append(m.current_device())

@on_one
def nested(depth):
    seen.append(m.current_device())
    if depth:
        nested(depth - 1)
        seen.append(m.current_device())

nested(2); seen.append(m.current_device())

inside, left = threading.Barrier(2), threading.Barrier(2)
def work(before, early):
    m.set_device(before)
    @on_one
    def meet():
        inside.wait(10)
        if not early: left.wait(10)
    meet()
    if early: left.wait(10)
    seen.append((before, m.current_device()))

threads = [threading.Thread(target=work, args=args) for args in ((0, True), (1, False))]
[t.start() for t in threads]; [t.join() for t in threads]
print(seen[:-2], sorted(seen[-2:]))
"""
    )
    assert out == "[1, 0, 1, 1, 1, 1, 1, 0] [(0, 0), (1, 1)]"


def test_another_devices_name_is_refused_with_what_is_wanted(python):
    out = python(
        BF16
        + """
for wrong in ("cpu", torch.device("cuda", 0)):
    try: m.synchronize(wrong)
    except ValueError as error: print(error)
"""
    )
    assert out.splitlines() == [
        f"device is '{wrong}', want an index or a device of type 'maca'" for wrong in ("cpu", "cuda:0")
    ]


def test_a_device_that_is_not_there_is_refused(python):
    """By streams, sizes and facts alike; torch.cuda has no device below 0 either, but for set_device."""
    out = python(
        BF16
        + """
def told(work):
    try: return f"returned {work()}"
    except (RuntimeError, ValueError) as error: return f"{type(error).__name__} {error}"
for name in ("default_stream", "current_stream", "get_device_properties", "memory_allocated", "mem_get_info",
             "memory_summary", "synchronize", "get_rng_state"):
    print(name, told(lambda: getattr(m, name)(99)))
    print(name, told(lambda: getattr(m, name)(-5)))
print(told(lambda: m.set_per_process_memory_fraction(0.5, -2)))
m.set_device(-1)
with m.device(-1): print(m.current_device())
"""
    ).splitlines()
    assert len(out) == 18
    for high, negative in zip(out[:16:2], out[1:16:2], strict=True):
        assert re.match(r"\w+ RuntimeError maca:99 does not exist: this process sees \d+ maca device", high)
        assert negative.endswith(
            "ValueError device is -5, want an index from 0 on, or None for the current device"
        )
    assert out[16:] == [
        "ValueError device is -2, want an index from 0 on, or None for the current device",
        "0",
    ]


@pytest.mark.sim_only("the simulator's properties")
def test_properties_are_told_under_the_names_torch_cuda_uses(python):
    out = python(
        BF16
        + """
p = m.get_device_properties(1)
print(m.get_device_name(1), "|", p.total_memory, p.major, p.minor, p.multi_processor_count > 0)
print(m.get_device_capability("maca:1"))
""",
        TEFL_SIM_CAPACITY="64M",
    )
    assert out.splitlines() == [f"simulated device 1 | {64 << 20} 0 0 True", "(0, 0)"]


def can_be_made(dtype: torch.dtype) -> bool:
    try:
        return torch.empty(4, dtype=dtype, device="maca").dtype == dtype
    except (NotImplementedError, RuntimeError):
        return False


@pytest.mark.usefixtures("maca")
@pytest.mark.skipif(
    not hasattr(torch.accelerator, "get_device_capability"), reason="this PyTorch does not ask for it"
)
def test_its_capability_is_the_dtypes_that_its_tensors_may_have():
    told = torch.accelerator.get_device_capability("maca:0")["supported_dtypes"]
    known = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert told == {dtype for dtype in known if can_be_made(dtype)}
    with pytest.raises(RuntimeError, match="maca:99 does not exist"):
        torch.accelerator.get_device_capability(99)


@pytest.mark.sim_only("the simulator's settings")
def test_a_bad_setting_of_the_provider_is_an_error_of_the_first_use(python):
    out = python(
        BF16
        + """
print(m.device_count(), m.is_available())
for _ in range(2):
    try: torch.ones(1, device="maca")
    except RuntimeError as error: print(error)
""",
        TEFL_SIM_DEVICES="many",
    )
    told = "maca: init failed: TEFL_SIM_DEVICES='many': want a whole number from 1 to 64"
    assert out.splitlines() == ["0 False", told, told]


@pytest.mark.needs_two_devices
def test_streams_and_events_order_work(python):
    out = python(
        BF16
        + """
default = m.default_stream()
print(m.current_stream() == default, m.default_stream(1).device)
stream, start, end = m.Stream(), m.Event(enable_timing=True), m.Event(enable_timing=True)
with m.stream(stream):
    print(m.current_stream() == stream, stream != default)
    start.record()
    x = torch.arange(1000, device="maca") * 2
    end.record()
default.wait_event(end)
m.synchronize()
print(end.query(), start.elapsed_time(end) >= 0, m.current_stream() == default, x[-1].item())
with m.stream(None):
    print(m.current_stream() == default)
m.set_stream(stream); m.set_stream(None)
print(m.current_stream() == stream)
"""
    )
    assert out.splitlines() == [
        "True maca:1",
        "True True",
        "True True True 1998",
        "True",
        "True",
    ]


@pytest.mark.needs_two_devices
def test_each_device_has_a_generator_of_its_own_that_seeds_and_states_reproduce(python):
    out = python(
        BF16
        + """
def draw(i): return torch.rand(3, device=f"maca:{i}").tolist()
torch.manual_seed(5); a = [draw(0), draw(1)]
m.manual_seed_all(5); b = [draw(0), draw(1)]
print(a == b, a[0] == a[1])
states = m.get_rng_state_all(); c = [draw(0), draw(1)]
m.set_rng_state_all(states); print(c == [draw(0), draw(1)])
state = m.get_rng_state("maca:1"); d = draw(1); m.set_rng_state(state, 1); print(d == draw(1))
cpu = torch.get_rng_state(); draw(0); print(torch.equal(cpu, torch.get_rng_state()))
m.manual_seed(9); print(m.initial_seed(), m.default_generators[0].initial_seed(), len(m.default_generators))
print(len(list(m.default_generators)), m.default_generators[-1] is not None)
print(m.seed() == m.initial_seed(), m.seed_all() == m.default_generators[1].initial_seed())
with torch.random.fork_rng(devices=[0, 1], device_type="maca"):
    m.manual_seed_all(1)
print(m.initial_seed() != 1)
try: m.default_generators[2]
except IndexError as error: print(error)
"""
    )
    assert out.splitlines() == [
        "True True",
        "True",
        "True",
        "True",
        "9 9 2",
        "2 True",
        "True True",
        "True",
        "no generator 2: there are 2 devices",
    ]


@pytest.mark.sim_only("a device with a capacity that the test sets")
def test_memory_is_counted(python):
    out = python(
        BF16
        + """
before = m.memory_allocated()
x = torch.empty(1 << 20, dtype=torch.uint8, device="maca")
print(m.memory_allocated() - before, m.max_memory_allocated() >= m.memory_allocated(), m.memory_allocated(1))
print(m.memory_reserved() >= m.memory_allocated(), m.max_memory_reserved() >= m.memory_reserved())
del x
m.empty_cache(); m.reset_peak_memory_stats(); m.reset_accumulated_memory_stats()
free, total = m.mem_get_info()
print(m.memory_allocated() == before, m.max_memory_allocated() == before, free <= total == 64 << 20)
print(m.memory_stats()["allocated_bytes.all.current"] == before)
""",
        TEFL_SIM_CAPACITY="64M",
    )
    assert out.splitlines() == [f"{1 << 20} True 0", "True True", "True True True", "True"]


def test_a_child_forked_after_the_start_is_refused_and_one_forked_before_is_not(python):
    out = python(
        BF16
        + """
import os
def child():
    pid = os.fork()
    if pid == 0:
        try:
            torch.manual_seed(1)
            print(m._is_in_bad_fork(), torch.ones(1, device="maca").item(), flush=True)
        except RuntimeError as error:
            print(m._is_in_bad_fork(), error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
child()
torch.ones(1, device="maca")
child()
""",
        timeout=60,
    )
    assert out.splitlines() == [
        "False 1.0",
        "True Cannot re-initialize maca in forked subprocess. To use maca with multiprocessing, you must use "
        "the 'spawn' start method",
    ]


# ----------------------------------------------------------------------------------------------- autocast

AUTOCAST = """
def dtype(**how):
    with torch.autocast("maca", **how):
        return (torch.ones(2, 2, device="maca") @ torch.ones(2, 2, device="maca")).dtype
"""


def test_autocast_uses_the_declared_dtype_in_every_thread(python):
    out = python(
        BF16
        + AUTOCAST
        + """
seen = []
thread = threading.Thread(target=lambda: seen.append(dtype())); thread.start(); thread.join()
print(dtype(), dtype(dtype=torch.float16), dtype(enabled=False), *seen)
"""
    )
    assert out == "torch.bfloat16 torch.float16 torch.float32 torch.bfloat16"


def test_a_nested_autocast_inherits_the_dtype_and_restores_it(python):
    out = python(
        BF16
        + AUTOCAST
        + """
with torch.autocast("maca", dtype=torch.float16):
    print(dtype(), dtype(dtype=torch.bfloat16), dtype())
print(dtype())
@torch.autocast("maca")
def decorated(): return (torch.ones(2, 2, device="maca") @ torch.ones(2, 2, device="maca")).dtype
print(decorated())
"""
    )
    assert out.splitlines() == [
        "torch.float16 torch.bfloat16 torch.float16",
        "torch.bfloat16",
        "torch.bfloat16",
    ]


@pytest.mark.parametrize("how", ["", "enabled=True"])
def test_autocast_without_a_declared_dtype_needs_an_explicit_one(python, how):
    out = python(
        NOT_DECLARED
        + AUTOCAST
        + f"""
try: dtype({how})
except RuntimeError as error: print(error)
print(dtype(dtype=torch.bfloat16), dtype(enabled=False))
"""
    )
    first, second = out.splitlines()
    assert first.startswith(
        "torch.autocast('maca') needs an explicit dtype: the provider declared no default"
    )
    assert second == "torch.bfloat16 torch.float32"


def test_autocast_refuses_other_dtypes_as_torch_does(python):
    out = python(
        BF16
        + """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with torch.autocast("maca", dtype=torch.float64):
        pass
print(torch.maca.get_amp_supported_dtype(), "target dtype is not supported" in str(caught[0].message))
"""
    )
    assert out == "[torch.bfloat16, torch.float16] True"
