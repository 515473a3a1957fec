"""Copies convert, broadcast and order streams, between the host, one device and two."""

from __future__ import annotations

import itertools

import pytest
import torch
from claimed import OTHER

pytestmark = pytest.mark.usefixtures("maca")

PLACES = ("cpu", "maca:0", "maca:1")
PAIRS = [pair for pair in itertools.product(PLACES, PLACES) if pair != ("cpu", "cpu")]
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
#: From complex to real drops the imaginary part, with a warning, wherever it happens.
CONVERSIONS = [(a, b) for a, b in itertools.product(DTYPES, DTYPES) if b.is_complex or not a.is_complex]
LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "strided": lambda t: t[:, ::2],
    "offset": lambda t: t[1:, 1:],
    "broadcast": lambda t: t[:1].expand(5, -1),
    "channels last": lambda t: t.reshape(1, 2, 2, -1).to(memory_format=torch.channels_last),
}


def sample(dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.arange(32).reshape(4, 8).remainder(5).to(dtype).to(device)


@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_keep_values_for_every_layout(pair, layout):
    source = LAYOUTS[layout](sample(torch.float32, pair[0]))
    wanted = LAYOUTS[layout](sample(torch.float32, "cpu"))
    moved = source.to(pair[1])
    torch.testing.assert_close(moved.cpu(), wanted, rtol=0, atol=0)
    assert moved.device == torch.device(pair[1])
    target = torch.full((*wanted.shape, 2), 9.0, device=pair[1])[..., 0]  # not dense
    assert target.copy_(source) is target
    torch.testing.assert_close(target.cpu(), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
@pytest.mark.parametrize("dtypes", CONVERSIONS, ids=lambda pair: " to ".join(map(str, pair)))
def test_copies_convert_between_dtypes(pair, dtypes):
    target = torch.zeros(4, 8, dtype=dtypes[1], device=pair[1])
    target.copy_(sample(dtypes[0], pair[0]))
    torch.testing.assert_close(target.cpu(), sample(dtypes[0], "cpu").to(dtypes[1]), rtol=0, atol=0)


@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
def test_copies_broadcast_the_source(pair):
    target = torch.zeros(3, 4, device=pair[1])
    target.copy_(torch.arange(4.0, device=pair[0]))
    assert target.tolist() == [[0, 1, 2, 3]] * 3
    with pytest.raises(RuntimeError, match=r"must match the existing size|expanded size"):
        target.copy_(torch.zeros(5, device=pair[0]))


@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
@pytest.mark.parametrize("lazy", [torch.conj, lambda t: t.conj().imag], ids=["conjugate", "negative"])
def test_copies_honour_lazy_bits_on_either_side(pair, lazy):
    values = torch.complex(torch.arange(6.0), torch.arange(6.0) + 1)
    plain = lazy(values).resolve_conj().resolve_neg()
    torch.testing.assert_close(lazy(values.to(pair[0])).to(pair[1]).cpu(), plain)
    target = torch.zeros(6, dtype=torch.complex64, device=pair[1])
    lazy(target).copy_(plain.to(pair[0]))
    torch.testing.assert_close(lazy(target).cpu().resolve_conj().resolve_neg(), plain)


@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
def test_a_copy_of_nothing_is_nothing(pair):
    moved = torch.zeros(0, 3, device=pair[0]).to(pair[1])
    assert moved.shape == (0, 3)
    assert moved.device == torch.device(pair[1])


def test_an_overlapping_copy_within_a_storage_behaves_as_on_the_cpu():
    for device in ("cpu", "maca"):
        x = torch.arange(8.0, device=device)
        x.copy_(x)
        x[:4].copy_(x[4:])
        assert x.tolist() == [4, 5, 6, 7, 4, 5, 6, 7]
        with pytest.raises(RuntimeError, match="unsupported operation"):
            x[1:].copy_(x[:-1])


def test_a_pageable_source_may_be_changed_right_after_a_non_blocking_copy():
    for _ in range(20):
        source = torch.ones(1 << 16)
        moved = source.to("maca", non_blocking=True)
        source.zero_()
        assert moved.eq(1).all().item()


def test_a_pinned_copy_is_done_when_the_stream_is(maca):
    source = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    moved = source.to("maca", non_blocking=True)
    back = torch.empty(1 << 16, pin_memory=True)
    back.copy_(moved, non_blocking=True)
    maca.synchronize()
    torch.testing.assert_close(back, source, rtol=0, atol=0)


def test_pinned_memory_is_known_and_other_memory_is_not():
    pinned = torch.ones(8).pin_memory()
    assert pinned.is_pinned()
    assert pinned[3:].is_pinned()
    assert pinned.device.type == "cpu"
    assert not torch.ones(8).is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(2, device="maca").pin_memory()
    with pytest.raises(RuntimeError, match="only host memory can be pinned"):
        torch.empty(2, device="maca", pin_memory=True)


def test_a_copy_between_devices_waits_for_the_sources_stream():
    for _ in range(20):
        source = torch.zeros(1 << 18, device="maca:0")
        source.copy_(torch.ones(1 << 18, device="maca:0"))  # enqueued, not done
        assert source.to("maca:1").eq(1).all().item()


def test_a_temporary_may_be_freed_before_its_copy_has_run():
    target = torch.zeros(1 << 18, device="maca")
    for step in range(20):
        target.copy_(torch.full((1 << 18,), float(step), device="maca"))
        torch.full((1 << 18,), -1.0, device="maca")
        assert target.eq(step).all().item()


def test_storages_move_and_copy_bytes():
    x = torch.arange(6.0, device=OTHER)
    host = x.untyped_storage().cpu()
    assert host.device.type == "cpu"
    assert torch.tensor([], dtype=torch.float32).set_(host).tolist() == [0, 1, 2, 3, 4, 5]
    target = torch.zeros(6, device="maca:0")
    target.untyped_storage().copy_(host)
    assert target.tolist() == [0, 1, 2, 3, 4, 5]
    assert x.untyped_storage().clone().device == torch.device(OTHER)
    assert x.untyped_storage()[4] == 0


def test_a_storage_grows_and_shrinks_in_place():
    x = torch.arange(4.0, device=OTHER)
    storage = x.untyped_storage()
    storage.resize_(64)
    assert storage.nbytes() == 64
    assert storage.device == torch.device(OTHER)
    assert x.tolist() == [0, 1, 2, 3]
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(16)
    assert x.fill_(5).tolist() == [5, 5, 5, 5]


def test_numbers_and_lists_are_read_from_the_device():
    x = torch.tensor([[1.5, 2.5]], device=OTHER)
    assert (x[0, 1].item(), float(x[0, 0]), x.tolist()) == (2.5, 1.5, [[1.5, 2.5]])
    assert bool(torch.tensor(True, device="maca"))
    with pytest.raises(TypeError, match="maca"):
        x.numpy()


def test_deepcopy_and_pickle_keep_the_device():
    import copy
    import io

    x = torch.arange(3.0, device=OTHER)
    assert copy.deepcopy(x).device == x.device
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded.device == x.device
    assert loaded.tolist() == [0, 1, 2]
    file.seek(0)
    assert torch.load(file, map_location="cpu").device.type == "cpu"
