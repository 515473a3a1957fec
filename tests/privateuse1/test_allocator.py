"""Device memory: where it is taken from, how it is counted, and what happens when there is none left."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from claimed import ALIAS, DEVICES

pytestmark = pytest.mark.usefixtures("maca")

MIB = 1 << 20


def held(*tensors: torch.Tensor) -> int:
    """The bytes of the blocks that these tensors' storages are in: whole multiples of 512."""
    return sum((t.untyped_storage().nbytes() + 511) // 512 * 512 for t in tensors)


@pytest.fixture
def in_use():
    """The bytes of the blocks in use on a device, less those in use before the test."""
    if ALIAS == "cuda":  # its libraries take memory of their own at first use, and keep it
        x = torch.randn(64, 64, device="maca", requires_grad=True)
        (torch.linalg.inv(x.detach()) @ x @ x).sum().backward()  # each thread's own
        del x
    gc.collect()
    before = [torch.accelerator.memory_allocated(i) for i in range(DEVICES)]

    def more(index: int = 0) -> int:
        return torch.accelerator.memory_allocated(index) - before[index]

    return more


def test_tensors_are_counted_while_they_live(in_use):
    x = torch.empty(MIB, dtype=torch.uint8, device="maca:1")
    assert (in_use(0), in_use(1)) == (0, MIB)
    view = x[10:]
    del x
    assert in_use(1) == MIB
    del view
    assert in_use(1) == 0


@pytest.mark.sim_only("cuBLAS keeps a workspace for each thread and stream")
def test_what_an_operator_returns_is_the_devices_memory(in_use):
    x = torch.zeros(1024, device="maca:1")
    y = x + 1
    z = torch.mm(x.reshape(32, 32), x.reshape(32, 32))
    s, i = x.sort()
    assert in_use(1) == held(x, y, z, s, i)
    assert in_use(0) == 0


def test_what_an_operator_needs_in_between_is_the_devices_memory_too(in_use):
    x = torch.randn(64, 64, device="maca")
    torch.accelerator.reset_peak_memory_stats(0)
    start = torch.accelerator.max_memory_allocated(0)
    torch.linalg.inv(x)
    assert torch.accelerator.max_memory_allocated(0) - start > x.nbytes
    assert in_use(0) == x.nbytes


def test_memory_that_out_and_resize_take_is_the_devices_memory(in_use):
    out = torch.empty(0, device="maca")
    torch.add(torch.zeros(512, device="maca"), 1, out=out)
    assert in_use(0) == 2048
    out.resize_(1024)
    assert in_use(0) == 4096
    out.untyped_storage().resize_(8)
    assert in_use(0) == held(out) == 512


def test_gradients_and_saved_tensors_go_away_with_the_graph(in_use):
    x = torch.randn(256, 256, device="maca", requires_grad=True)
    torch.nn.functional.gelu(x @ x).sum().backward()
    x.grad = None
    assert in_use(0) == x.nbytes


def test_a_failing_operator_leaves_nothing_behind(in_use):
    x = torch.randn(32, 32, device="maca")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="singular"):
            torch.linalg.inv(torch.zeros_like(x))
    gc.collect()
    assert in_use(0) == x.nbytes


def test_the_hosts_own_tensors_are_not_redirected(in_use):
    x = torch.ones(1024) + torch.ones(1024)
    assert in_use(0) == 0
    assert x.device.type == "cpu"


@pytest.mark.sim_only("cuBLAS keeps a workspace for each thread and stream")
def test_threads_count_correctly_and_leave_nothing(in_use):
    def work(index: int) -> None:
        for size in range(1, 60):
            x = torch.full((size, 64), 2.0, device=f"maca:{index}")
            assert (x @ x.t()).sum().item() == size * size * 256

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (in_use(0), in_use(1)) == (0, 0)


def test_statistics_have_torchs_names():
    x = torch.empty(4096, dtype=torch.uint8, device="maca")
    stats = torch.accelerator.memory_stats(0)
    assert stats["allocated_bytes.all.current"] >= x.nbytes
    assert stats["num_device_alloc"] >= 1
    torch.accelerator.reset_peak_memory_stats(0)
    assert torch.accelerator.max_memory_allocated(0) == torch.accelerator.memory_allocated(0)
    torch.accelerator.reset_accumulated_memory_stats(0)
    assert torch.accelerator.memory_stats(0)["allocated_bytes.all.allocated"] == 0
    torch.accelerator.empty_cache()
    free, total = torch.accelerator.get_memory_info(0)
    assert 0 < free <= total


def test_an_empty_tensor_takes_no_memory_and_knows_its_device(in_use):
    for shape in ((0,), (3, 0)):
        x = torch.empty(shape, device="maca:1")
        assert (x.device.index, x.untyped_storage().device.index, x.data_ptr()) == (1, 1, 0)
        assert torch.arange(0, device="maca:1").device == x.device
    assert in_use(1) == 0


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(RuntimeError, match=f"maca:7 does not exist: this process sees {DEVICES} maca device"):
        torch.empty(2, device="maca:7")


def test_deterministic_mode_fills_what_empty_returns():
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in (torch.float32, torch.bfloat16, torch.complex64):
            assert torch.empty(5, dtype=dtype, device="maca").isnan().all()
            assert torch.empty_strided((5,), (1,), dtype=dtype, device="maca").isnan().all()
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            assert torch.empty(5, dtype=dtype, device="maca").eq(torch.iinfo(dtype).max).all()
        assert torch.empty(5, dtype=torch.bool, device="maca").all()
        assert torch.zeros(3, device="maca").resize_(5)[3:].isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)
