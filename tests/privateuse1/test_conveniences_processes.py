"""Tools that measure; processes: spawned ones work, forked ones are refused in CUDA's words, all end well."""

from __future__ import annotations

import pytest
import torch

CLAIM = """
import torch
from claimed import INDEX, OTHER, claim
claim()
"""

# ------------------------------------------------------------------------------------------- tools --


@pytest.mark.usefixtures("maca")
def test_the_benchmark_timer_measures_work_on_the_device():
    from torch.utils.benchmark import Timer

    x = torch.ones(1000, device="maca")
    measured = Timer("x + x", globals={"x": x}).timeit(20)
    assert measured.number_per_run == 20
    assert 0 < measured.median < 1
    assert Timer("x.sum()", globals={"x": x}).blocked_autorange(min_run_time=0.01).median > 0


@pytest.mark.usefixtures("maca")
def test_the_profiler_shows_ranges_of_the_host_nested_as_they_ran():
    from torch.profiler import ProfilerActivity, profile, record_function

    x = torch.ones(8, 8, device="maca", requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as run, record_function("step"):
        (x @ x).sum().backward()
    events = {event.name: event for event in reversed(run.events())}  # the first of each name
    assert events["aten::mm"].input_shapes == [[8, 8], [8, 8]]
    assert events["aten::matmul"].cpu_parent.name == "step"
    assert events["aten::mm"].cpu_parent.name == "aten::matmul"
    assert any("MmBackward0" in name for name in events)
    assert all(event.time_range.elapsed_us() >= 0 for event in run.events())


@pytest.mark.usefixtures("maca")
def test_a_trace_of_the_profiler_is_written_and_names_the_operators(tmp_path):
    import json

    x = torch.ones(8, device="maca")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as run:
        x.cumsum(0)
    run.export_chrome_trace(str(tmp_path / "trace.json"))
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert "aten::cumsum" in names


def test_the_autograd_profiler_times_ranges_by_the_devices_events(python):
    done = python.run(
        CLAIM
        + """
x = torch.ones(256, 256, device=OTHER)
with torch.maca.device(INDEX), torch.autograd.profiler.profile(use_device="maca", use_kineto=False) as run:
    for _ in range(3):
        x @ x
(mm,) = [event for event in run.key_averages() if event.key == "aten::mm"]
# The alias device's own range lies in the device's; torch drops it where it is the only one in there.
print(mm.count in (3, 6), 0 < mm.device_time_total < 1e7, run.key_averages().table().count("MACA") > 0)
"""
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True True True"), done.stderr
    assert "Exception in RecordFunction" not in done.stderr


# ------------------------------------------------------------------------------------------- spawn --

SPAWNED = """
import os, sys
import torch, torch.multiprocessing as mp
from claimed import INDEX, OTHER, claim
claim()

def child(rank, queue):
    x = torch.full((3,), float(rank), device=f"maca:{rank}", requires_grad=True)
    (x * x).sum().backward()
    queue.put((rank, x.grad.tolist(), str(x.grad.device)))

def failing(rank):
    torch.ones(1, device="maca:7")

if __name__ == "__main__":
    torch.ones(2, device="maca").sum().item()  # the parent's runtime has started
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(child, args=(queue,), nprocs=2)
    print(sorted(queue.get() for _ in range(2)))
    try:
        mp.spawn(failing, nprocs=1)
    except mp.ProcessRaisedException as error:
        print("maca:7 does not exist: this process sees 2" in str(error))
"""


def test_spawned_processes_use_the_device_of_a_parent_that_uses_it(fresh_python, tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    done = fresh_python.start([str(script)])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "[(0, [0.0, 0.0, 0.0], 'maca:0'), (1, [2.0, 2.0, 2.0], 'maca:1')]",
        "True",
    ]


# -------------------------------------------------------------------------------------------- fork --

#: torch.cuda._lazy_init's words, with the device's name in CUDA's place.
FORKED = (
    "Cannot re-initialize maca in forked subprocess. To use maca with multiprocessing, you must use the "
    "'spawn' start method"
)


def test_a_forked_worker_that_uses_the_device_is_told_what_cuda_tells(fresh_python):
    done = fresh_python.run(
        CLAIM
        + """
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return torch.ones(1, device="maca")
torch.ones(1, device="maca")
try:
    next(iter(DataLoader(Rows(), num_workers=1, multiprocessing_context="fork")))
except RuntimeError as error:
    print(str(error).strip().splitlines()[-1])
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == f"RuntimeError: {FORKED}"


def test_cudas_own_refusal_reads_the_same():
    """The text is torch's: torch/cuda/__init__.py; where it changes, ours is to follow."""
    import inspect

    source = " ".join(inspect.getsource(torch.cuda._lazy_init).replace('"', "").split())
    assert FORKED.replace("maca", "CUDA") in source


# -------------------------------------------------------------------------------------------- exit --

ENDINGS = {
    "streams that still work": "for _ in range(50): x = x @ x * 0.001",
    "a thread that still uses the device": """
import threading
def work():
    for _ in range(2000):
        torch.ones(64, 64, device=OTHER) @ torch.ones(64, 64, device=OTHER)
threading.Thread(target=work).start()""",
    # Both batches ahead are waited for: torch's thread raises where a worker ends before it has fetched from
    # it, with plain CUDA too (pytorch/pytorch#1551).
    "a loader with pinned batches in flight": """
import time
from torch.utils.data import DataLoader
loader = iter(DataLoader(torch.ones(64, 4), batch_size=1, pin_memory=True, num_workers=1, prefetch_factor=2))
batch = next(loader)
while loader._data_queue.qsize() < 2:
    time.sleep(0.01)""",
    "a graph, a generator and an optimizer alive": """
w = torch.nn.Parameter(x.clone()); o = torch.optim.Adam([w]); (w @ x).sum().backward(); o.step()
g = torch.Generator("maca"); kept = (w @ x).sum()""",
    "an error": "raise SystemExit(0)",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_process_ends_cleanly_with(name, fresh_python):
    done = fresh_python.run(CLAIM + 'x = torch.ones(128, 128, device="maca")\n' + ENDINGS[name])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no process groups")
def test_a_process_ends_cleanly_with_a_ddp_module_and_its_process_group_alive(fresh_python):
    done = fresh_python.run(
        CLAIM
        + """
import torch.distributed as dist
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to("maca"))
loss = model(torch.ones(2, 4, device="maca")).sum()
loss.backward()
print(model.module.weight.grad.cpu().unique().tolist(), flush=True)
"""
    )
    assert (done.returncode, done.stdout) == (0, "[2.0]\n"), done.stderr
    assert "terminate called" not in done.stderr
