"""The runtime starts on first use, does not survive a fork, and is left alone when the process ends."""

from __future__ import annotations

CLAIM = """
import os, sys, threading
import torch
from tefl import _native
from claimed import ALIAS, claim
claim()
native = _native.load()

def in_child(work):
    # Runs `work` in a forked child and says how it ended.
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    text = b""
    while part := os.read(read, 4096):
        text += part
    assert os.waitpid(child, 0)[1] == 0
    return text.decode().splitlines()[0]
"""


def test_importing_the_native_part_leaves_the_slot_to_others(fresh_python):
    out = fresh_python(
        """
        import torch
        from tefl import _native
        native = _native.load()
        print(torch._C._get_privateuse1_backend_name(), native.has_kernel("aten::view", "PrivateUse1"))
        print(torch.accelerator.is_available() != torch.cuda.is_available())
        """
    )
    assert out.splitlines() == ["privateuseone False", "False"]


def test_nothing_but_use_starts_the_runtime(python):
    out = python(
        CLAIM
        + """
device = torch.device("maca", 1)
repr(device), torch.get_device_module("maca"), torch.maca.device_count(), torch.maca.is_available()
torch.accelerator.current_accelerator(), torch.accelerator.device_count()
torch.manual_seed(0), torch.ones(2) @ torch.ones(2), torch.empty(2, device="meta")
if ALIAS == "cpu":  # with CUDA in this torch either starts the GPU, whether a device is claimed or not
    torch.ones(2, requires_grad=True).sum().backward(), torch.Generator("maca")
print(native.is_initialized(), in_child(lambda: torch.ones(3, device="maca").sum().item()))
torch.ones(1, device="maca")
print(native.is_initialized())
"""
    )
    assert out.splitlines() == ["False 3.0", "True"]


def test_a_child_forked_after_first_use_is_told_to_spawn(python):
    out = python(
        CLAIM
        + """
x, pinned = torch.ones(3, device="maca"), torch.ones(3).pin_memory()
event = torch.Event("maca")
for work in (
    lambda: torch.ones(2, device="maca"), lambda: x + 1, lambda: x.cpu(), lambda: x.copy_(torch.ones(3)),
    lambda: torch.ones(3).to("maca"), lambda: x.fill_(2), lambda: torch.ones(2).pin_memory(),
    lambda: torch.maca.synchronize(), lambda: torch.Stream("maca"), lambda: event.record(),
    lambda: torch.maca.get_device_name(0),
):
    print(in_child(work))
print(x.tolist(), native.in_bad_fork(), in_child(native.in_bad_fork))
"""
    ).splitlines()
    assert len(out) == 12
    for line in out[:-1]:
        assert line.startswith("RuntimeError: Cannot re-initialize maca in forked subprocess. ")
        assert "you must use the 'spawn' start method" in line
    assert out[-1] == "[1.0, 1.0, 1.0] False True"


def test_a_forked_child_drops_inherited_tensors_and_works_on_the_cpu(python):
    out = python(
        CLAIM
        + """
x, event = torch.ones(1000, device="maca"), torch.Event("maca")
event.record()
def work():
    global x, event
    del x, event
    return (torch.randn(64, 64) @ torch.randn(64, 64)).shape[0]
print(in_child(work), x.sum().item())
"""
    )
    assert out == "64 1000.0"


def test_threads_that_race_to_the_first_use_start_the_runtime_once(python):
    out = python(
        CLAIM
        + """
gate, results = threading.Barrier(8), []
def work():
    gate.wait()
    results.append(torch.full((100,), 1.0, device="maca").sum().item())
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
print(results)
"""
    )
    assert out == str([100.0] * 8)


def test_the_process_ends_cleanly_with_everything_alive(fresh_python):
    done = fresh_python.run(
        CLAIM
        + """
import builtins, atexit
atexit.register(lambda: print("last", torch.ones(2, device="maca").sum().item()))
model = torch.nn.Linear(4, 4).to("maca")
loss = model(torch.ones(2, 4, device="maca")).sum()
loss.backward()
builtins.kept = [model, loss, torch.ones(1 << 20, device="maca"), torch.Stream("maca"), torch.Event("maca")]
builtins.kept.append(builtins.kept)  # a cycle that only the very end collects
builtins.kept[-2].record()
"""
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "last 2.0\n")


def test_a_second_claim_is_refused_before_it_changes_anything(python):
    out = python(
        CLAIM
        + """
from tefl.privateuse1.discovery import built_in_library
handle, defects, name = native.load_provider(str(built_in_library("sim")))
print(defects, [what for what, remedy in native.claim_defects(handle)])
try:
    native.claim(handle, "other")
except RuntimeError as error:
    print(str(error).splitlines()[0])
print(torch.ones(2, device="maca").sum().item())
"""
    ).splitlines()
    assert out[0] == "[] [\"the device 'maca' is claimed already in this process\"]"
    assert out[1].startswith("other cannot be claimed: the device 'maca' is claimed already")
    assert out[2] == "2.0"
