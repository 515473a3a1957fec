"""What the device shares with PyTorch's own CUDA, when it is a GPU under another name.

They run on a GPU only: ``pytest --provider cuda``.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

pytestmark = [pytest.mark.cuda_only, pytest.mark.usefixtures("maca")]

MIB = 1 << 20
CLAIM = """
import os, threading
import torch
from claimed import claim
claim()
"""


def as_cuda(tensor: torch.Tensor) -> torch.Tensor:
    from tefl.privateuse1 import as_alias

    return as_alias(tensor)


# ---------------------------------------------------------------------------------------------- memory --


def test_memory_is_counted_once_under_both_names(maca):
    before = torch.cuda.memory_allocated(0)
    assert maca.memory_allocated(0) == before
    x = torch.empty(MIB, dtype=torch.uint8, device="maca")
    y = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    for count in (torch.cuda.memory_allocated, maca.memory_allocated, torch.accelerator.memory_allocated):
        assert count(0) == before + x.nbytes + y.nbytes
    assert maca.memory_stats(0)["num_alloc_retries"] == torch.cuda.memory_stats(0)["num_alloc_retries"]
    assert maca.memory_reserved(0) == torch.cuda.memory_reserved(0)


def test_memory_that_one_name_gives_back_the_other_takes(maca):
    maca.empty_cache()
    x = torch.empty(20 * MIB, dtype=torch.uint8, device="maca")
    address = x.data_ptr()
    del x
    assert torch.empty(20 * MIB, dtype=torch.uint8, device="cuda").data_ptr() == address


def test_running_out_of_memory_is_torchs_error():
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(1 << 50, dtype=torch.uint8, device="maca")


def test_an_alias_keeps_the_memory_and_a_result_is_nobodys_alias():
    x = torch.arange(4.0, device="maca")
    view = as_cuda(x)
    assert view.data_ptr() == x.data_ptr()
    address, x = x.data_ptr(), x + 1
    assert torch.empty(4, device="maca").data_ptr() != address
    assert view.tolist() == [0, 1, 2, 3]
    assert (view.device, x.device) == (torch.device("cuda:0"), torch.device("maca:0"))


def test_memory_recorded_on_a_stream_is_not_reused_before_it_is_done(maca):
    """Also for a tensor that came from CUDA, whose memory belongs to another storage."""
    from tefl.privateuse1 import from_alias

    for make in (lambda: torch.ones(MIB, device="maca"), lambda: from_alias(torch.ones(MIB, device="cuda"))):
        side, x, spare = torch.Stream("maca"), make(), torch.zeros(MIB, device="maca")
        with side:
            x * 1  # loads the kernel and gets its memory, either of which may wait
        del spare
        maca.synchronize()
        address = x.data_ptr()
        with side:
            torch.cuda._sleep(2_000_000_000)  # about a second
            kept = x * 1
        x.record_stream(side)
        del x
        other = torch.zeros(MIB, device="maca")
        assert other.data_ptr() != address
        maca.synchronize()
        assert kept.eq(1).all().item()


def test_pinned_memory_is_cudas(maca):
    mine, cudas = torch.ones(8).pin_memory(), torch.ones(8).pin_memory("cuda")
    assert mine.is_pinned()
    assert mine.is_pinned("cuda")
    assert cudas.is_pinned()
    torch.accelerator.empty_host_cache() if hasattr(torch.accelerator, "empty_host_cache") else None
    assert mine.sum() == 8


def test_memory_that_pytorch_pins_by_cuda_counts_as_pinned_once_the_device_is_used(python):
    out = python(
        CLAIM
        + """
torch.ones(2, device="maca")
print(torch.empty(8, pin_memory=True).is_pinned(), torch.empty(8).is_pinned())
"""
    )
    assert out == "True False"


# ------------------------------------------------------------------------------------ streams and events --


def test_the_current_stream_is_one_under_both_names(maca):
    stream = torch.Stream("maca")
    with stream:
        assert torch.cuda.current_stream().stream_id == stream.stream_id
        assert maca.current_stream() == stream
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        assert maca.current_stream().stream_id == torch.cuda.current_stream().stream_id != 0
    assert maca.current_stream().stream_id == torch.cuda.current_stream().stream_id


def test_work_in_a_stream_of_either_name_is_in_one_order(maca):
    stream = torch.cuda.Stream()
    data = torch.zeros(1 << 20, device="maca")
    as_cuda(data.fill_(0)).add_(0).eq(2).all().item()  # what CUDA loads at first use may wait
    maca.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2_000_000_000)  # about a second
        data.fill_(1)
        as_cuda(data).add_(1)
        event = torch.Event("maca")
        event.record()
    assert not event.query()
    maca.current_stream().wait_event(event)
    assert data.eq(2).all().item()


def test_nothing_waits_for_the_device_that_cuda_would_not_wait_for(maca):
    stream = torch.Stream("maca")
    x = torch.ones(64, 64, device="maca", requires_grad=True)
    host = torch.empty(64, 64, pin_memory=True)

    def step() -> torch.Tensor:
        y = F.dropout(F.gelu(x @ x), 0.5).softmax(-1).cumsum(0)[None, None]
        y = F.scaled_dot_product_attention(y, y, y, is_causal=True)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        host.copy_(gradient, non_blocking=True)
        return gradient

    with stream:
        step()  # what CUDA loads at first use may wait
        maca.synchronize()
        torch.cuda._sleep(2_000_000_000)  # about a second
        gradient = step()
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(host, gradient.cpu())


def test_a_priority_out_of_range_is_brought_into_it():
    for priority in (-100, 100):
        assert torch.Stream("maca", priority=priority).stream_id != 0


def test_a_captured_graph_replays_operators_and_random_numbers(maca):
    x, w = torch.ones(8, 8, device="maca"), torch.full((8, 8), 2.0, device="maca")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x @ w  # warm up
    torch.cuda.current_stream().wait_stream(side)
    graph = maca.CUDAGraph()
    with maca.graph(graph):
        assert maca.is_current_stream_capturing()
        y, noise = (x @ w).add_(1), torch.rand(16, device="maca")
    draws = []
    for value in (1.0, 3.0):
        x.fill_(value)
        graph.replay()
        draws.append(noise.clone())
        assert y.eq(16 * value + 1).all().item()
    assert not torch.equal(*draws)


# ------------------------------------------------------------------------------------------ random numbers --


def test_both_names_draw_from_one_generator(maca):
    torch.manual_seed(4)
    wanted = [torch.rand(4, device="cuda").cpu() for _ in range(2)]
    maca.manual_seed(4)
    got = [torch.rand(4, device=device).cpu() for device in ("maca", "cuda")]
    assert [t.tolist() for t in got] == [t.tolist() for t in wanted]
    assert torch.equal(maca.get_rng_state(), torch.cuda.get_rng_state())
    assert maca.initial_seed() == torch.cuda.initial_seed() == 4


def test_a_seed_given_before_the_start_counts_once_and_starts_nothing(python):
    out = python(
        CLAIM
        + """
torch.manual_seed(3)
print(torch.cuda.is_initialized(), torch.maca.is_initialized(), torch.maca.device_count() > 0)
a = torch.rand(4, device="maca")
b = torch.rand(4, device="maca")
torch.cuda.synchronize(); torch.cuda.get_rng_state()
c = torch.rand(4, device="maca")
torch.cuda.manual_seed(3)
again = [torch.rand(4, device="cuda").cpu() for _ in range(3)]
print([torch.equal(x.cpu(), y) for x, y in zip((a, b, c), again)])
"""
    )
    assert out.splitlines() == ["False False True", "[True, True, True]"]


def test_a_process_that_only_names_and_counts_devices_can_fork_and_use_cuda(python):
    out = python(
        CLAIM
        + """
torch.manual_seed(1); torch.device("maca:0"); torch.maca.is_available(); torch.get_device_module("maca")
torch.ones(2).is_pinned(); torch.accelerator.is_available(); torch.maca.memory_stats
if os.fork() == 0:
    print(torch.ones(2, device="cuda").sum().item(), torch.ones(2, device="maca").sum().item(), flush=True)
    os._exit(0)
os.wait()
"""
    )
    assert out == "2.0 2.0"


# ------------------------------------------------------------------------------------------------- copies --

PLACES = ("cpu", "pinned", "maca", "cuda")


def made(place: str, values: torch.Tensor) -> torch.Tensor:
    if place == "pinned":
        return values.clone().pin_memory()
    return values.clone() if place == "cpu" else values.to(place)


@pytest.mark.parametrize(
    ("source", "target"), [p for p in itertools.product(PLACES, PLACES) if {"maca"} & set(p)], ids=str
)
@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("layout", ["dense", "strided"])
def test_copies_between_names_and_host_keep_values_on_a_side_stream(
    maca, source, target, non_blocking, layout
):
    values = torch.arange(1 << 16, dtype=torch.float32).reshape(256, 256)
    start, end = made(source, torch.zeros_like(values)), made(target, torch.zeros_like(values))
    maca.synchronize()
    side = torch.Stream("maca")
    with side:
        if source in ("maca", "cuda"):
            torch.cuda._sleep(10_000_000)  # the copy must wait for what is before it in the stream
        start.copy_(values)
        a, b = (start.t(), end.t()) if layout == "strided" else (start, end)
        b.copy_(a.to(torch.float32), non_blocking=non_blocking)
        if target in ("maca", "cuda"):
            end.add_(1)
    if non_blocking and target in ("cpu", "pinned"):
        side.synchronize()
    wanted = values + 1 if target in ("maca", "cuda") else values
    maca.current_stream().wait_stream(side)
    assert torch.equal(end.cpu(), wanted)


def test_a_tensor_moves_to_cudas_name_and_back():
    x = torch.arange(6.0, device="maca").requires_grad_()
    y = x.to("cuda")
    assert y.device == torch.device("cuda:0")
    assert y.data_ptr() != x.data_ptr()
    assert y.to("maca").tolist() == x.tolist()


def test_operands_under_two_names_are_on_two_devices():
    a, b = torch.ones(2, device="maca"), torch.ones(2, device="cuda")
    for call in (lambda: a + b, lambda: b + a, lambda: torch.cat([a, b]), lambda: torch.add(a, a, out=b)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call()


# ------------------------------------------------------------------------------------------ other parts --


def test_layers_with_kernels_of_cudas_own_give_its_numbers():
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    for layer in (nn.LSTM(8, 8, batch_first=True), nn.GRU(8, 8, 2, batch_first=True), nn.Conv1d(5, 4, 3)):
        wanted = layer.double()(x.double())
        got = layer.to("maca")(x.double().to("maca"))
        wanted, got = (t if isinstance(t, torch.Tensor) else t[0] for t in (wanted, got))
        torch.testing.assert_close(got.cpu(), wanted)


def test_dropout_draws_cudas_mask():
    x = torch.ones(4096)
    masks = []
    for device in ("maca", "cuda"):
        torch.manual_seed(6)
        masks.append(F.dropout(x.to(device), 0.3).cpu())
    assert torch.equal(*masks)


def test_an_error_of_work_that_ran_earlier_is_cudas(python):
    done = python.run(
        CLAIM
        + """
x = torch.zeros(4, device="maca")
try:
    x[torch.tensor([9], device="maca")]; torch.maca.synchronize()
except torch.AcceleratorError as error:
    print("device-side assert" in str(error), flush=True)
os._exit(0)
"""
    )
    assert done.stdout.strip() == "True", done.stderr
