"""What a training script expects: loss scaling, checkpoints, pinned loaders, default device, lazy modules."""

from __future__ import annotations

import math

import pytest
import torch
from claimed import DEVICES, INDEX, OTHER
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.usefixtures("maca")


# -------------------------------------------------------------------------------------- GradScaler --


def scaler(**how):
    return torch.amp.GradScaler("maca", **how)


def test_a_scaler_skips_the_step_of_an_overflow_backs_off_and_grows_again():
    """The values follow from GradScaler's documentation: backoff 0.5, growth 2 after 2 good steps."""
    scale = scaler(init_scale=8.0, growth_interval=2)
    weight = torch.nn.Parameter(torch.ones(2, device="maca"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    seen = []
    for factor in (1.0, math.inf, 1.0, 1.0, math.nan, 1.0):
        optimizer.zero_grad()
        scale.scale((weight * factor).sum()).backward()
        scale.step(optimizer)
        scale.update()
        seen.append((scale.get_scale(), weight[0].item()))
    assert seen == [(8, 0), (4, 0), (4, -1), (8, -2), (4, -2), (4, -3)]


def test_unscaled_gradients_can_be_clipped():
    scale = scaler(init_scale=1024.0)
    weight = torch.nn.Parameter(torch.ones(4, device="maca"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scale.scale((weight * 3).sum()).backward()
    scale.unscale_(optimizer)
    assert weight.grad.tolist() == [3, 3, 3, 3]
    assert torch.nn.utils.clip_grad_norm_([weight], 1.0).item() == 6
    scale.step(optimizer)
    scale.update()
    torch.testing.assert_close(weight.cpu(), torch.full((4,), 0.5), check_dtype=True, rtol=1e-5, atol=1e-5)


def test_an_overflow_is_not_cleared_by_a_later_finite_gradient():
    found, inverse = torch.zeros(1, device="maca"), torch.ones(1, device="maca")
    overflow, finite = torch.tensor([math.inf, 1], device="maca"), torch.ones(2, device="maca")
    torch._amp_foreach_non_finite_check_and_unscale_([overflow], found, inverse)
    torch._amp_foreach_non_finite_check_and_unscale_([finite], found, inverse)
    assert found.item() == 1


def test_an_overflow_on_one_device_skips_the_step_on_both():
    scale = scaler(init_scale=2.0)
    weights = [torch.nn.Parameter(torch.ones(1, device=f"maca:{i}")) for i in range(2)]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    for weight, factor in zip(weights, (1.0, math.inf), strict=True):
        scale.scale((weight * factor).sum()).backward()
    scale.step(optimizer)
    scale.update()
    assert ([w.item() for w in weights], scale.get_scale()) == ([1, 1], 1)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_an_optimizer_skips_a_scaled_overflow(kind, fused):
    scale = scaler(init_scale=2.0)
    weight = torch.nn.Parameter(torch.ones(2, device="maca"))
    optimizer = kind([weight], lr=0.5, fused=fused)
    for factor in (1.0, math.inf):
        before = weight.tolist()
        optimizer.zero_grad()
        scale.scale((weight * factor).sum()).backward()
        scale.step(optimizer)
        scale.update()
        assert (weight.tolist() == before) == (factor == math.inf)


def test_a_scalers_state_is_saved_and_resumed():
    first, second = scaler(init_scale=32.0, growth_interval=5), scaler()
    first.scale(torch.ones(1, device="maca"))
    second.load_state_dict(first.state_dict())
    assert (second.get_scale(), second.get_growth_interval()) == (32, 5)


# ---------------------------------------------------------------------------------- checkpointing --


@pytest.mark.parametrize("device", sorted({"maca:0", OTHER}))
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_draws_the_same_numbers_and_leaves_the_generator_as_it_was(device, reentrant):
    masks = []

    def block(x: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.functional.dropout(torch.ones_like(x), 0.5)
        masks.append(mask.detach().clone())
        return x * mask

    x = torch.ones(1000, device=device, requires_grad=True)
    torch.manual_seed(3)
    result = checkpoint(block, x, use_reentrant=reentrant)
    torch.rand(10, device=device)
    before = torch.maca.get_rng_state(device)
    result.sum().backward()
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(x.grad, masks[0])
    assert torch.equal(torch.maca.get_rng_state(device), before)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_runs_under_the_forwards_autocast(reentrant):
    seen = []

    def block(x: torch.Tensor) -> torch.Tensor:
        seen.append((x @ x).dtype)
        return x @ x

    x = torch.ones(2, 2, device="maca", requires_grad=True)
    with torch.autocast("maca"):
        result = checkpoint(block, x, use_reentrant=reentrant)
    result.sum().backward()
    assert seen == [torch.bfloat16, torch.bfloat16]


def test_random_state_is_not_kept_when_it_is_not_wanted():
    masks = []

    def block(x: torch.Tensor) -> torch.Tensor:
        masks.append(torch.rand(100, device="maca"))
        return x * x

    x = torch.ones(2, device="maca", requires_grad=True)
    checkpoint(block, x, use_reentrant=False, preserve_rng_state=False).sum().backward()
    assert not torch.equal(masks[0], masks[1])


# ------------------------------------------------------------------------------------------ loaders --


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_pins_its_batches_and_they_copy_without_blocking(workers):
    data = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    batches = list(DataLoader(data, batch_size=2, pin_memory=True, num_workers=workers, **context(workers)))
    assert all(part.is_pinned() for batch in batches for part in batch)
    rows = [(x.to("maca", non_blocking=True), y.to(OTHER, non_blocking=True)) for x, y in batches]
    assert [x.tolist() for x, _ in rows] == torch.arange(12.0).reshape(3, 2, 2).tolist()
    assert [y.tolist() for _, y in rows] == [[0, 1], [2, 3], [4, 5]]


def context(workers: int) -> dict[str, str]:
    """Return how workers start: a forked child may not use the device, and these need not."""
    return {"multiprocessing_context": "fork"} if workers else {}


def test_a_loader_pins_what_collation_made_of_a_structure():
    data = [{"x": torch.ones(2), "name": "a"}, {"x": torch.ones(2), "name": "b"}]
    (batch,) = DataLoader(data, batch_size=2, pin_memory=True)
    assert batch["x"].is_pinned()
    assert batch["name"] == ["a", "b"]


# ---------------------------------------------------------------------------------- default device --


def test_the_default_device_holds_for_factories_modules_and_contexts():
    torch.set_default_device(OTHER)
    try:
        made = [
            torch.ones(2),
            torch.tensor([1.0]),
            torch.randn(2),
            torch.arange(3),
            torch.nn.Linear(2, 2).weight,
        ]
        assert {t.device for t in made} == {torch.get_default_device()} == {torch.device(OTHER)}
        with torch.device("cpu"):
            assert torch.ones(2).device.type == "cpu"
        assert torch.ones(2, device="maca:0").device.index == 0
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"


def test_the_bare_name_as_default_follows_the_current_device(maca):
    with torch.device("maca"), maca.device(INDEX):
        assert torch.ones(2).device == torch.device(OTHER)


def test_a_device_is_a_context_for_a_whole_model():
    with torch.device(OTHER):
        model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        result = model(torch.randn(1, 3, 8))
    assert {p.device for p in model.parameters()} == {result.device} == {torch.device(OTHER)}


def test_the_device_module_is_found_by_every_form_of_its_device(maca):
    for device in (None, "maca", OTHER, torch.device(OTHER)):
        assert torch.get_device_module(device) is maca


def test_the_accelerator_is_the_device(maca):
    assert torch.accelerator.current_accelerator() == torch.device("maca")
    assert torch.accelerator.device_count() == maca.device_count() == DEVICES


# ------------------------------------------------------------------------------------- lazy modules --


def lazy_model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.LazyConv1d(4, 1), torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(3))


@pytest.mark.parametrize("moved", ["before", "after"])
def test_a_lazy_module_takes_its_shapes_from_the_first_input_on_the_device(moved):
    model = lazy_model()
    x = torch.ones(2, 5, 6, device=OTHER)
    if moved == "before":
        model.to(OTHER)
    else:
        model(x.cpu())
        model.to(OTHER)
    assert model(x).shape == (2, 4, 3)
    assert {t.device for t in model.state_dict().values()} == {torch.device(OTHER)}
    assert type(model[2]) is torch.nn.Linear
    assert model[2].weight.shape == (3, 6)


def test_a_lazy_module_loads_a_state_from_the_device():
    full, lazy = torch.nn.Linear(5, 3, device="maca"), torch.nn.LazyLinear(3, device="maca")
    lazy.load_state_dict(full.state_dict())
    x = torch.ones(1, 5, device="maca")
    assert torch.equal(lazy(x), full(x))


# ------------------------------------------------------------------------------ deterministic fill --


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16]
MAKERS = {
    "empty": lambda dtype, device: torch.empty(3, dtype=dtype, device=device),
    "empty_strided": lambda dtype, device: torch.empty_strided((2, 2), (2, 1), dtype=dtype, device=device),
    "empty_like": lambda dtype, device: torch.empty_like(torch.zeros(3, dtype=dtype, device=device)),
    "new_empty": lambda dtype, device: torch.zeros(1, dtype=dtype, device=device).new_empty(3),
    "empty_permuted": lambda dtype, device: torch.empty_permuted((2, 3), (1, 0), dtype=dtype, device=device),
    "resize_": lambda dtype, device: torch.zeros(0, dtype=dtype, device=device).resize_(3),
}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_uninitialised_memory_is_filled_in_deterministic_mode_as_on_the_cpu(name, dtype):
    got, wanted = (MAKERS[name](dtype, device) for device in (OTHER, "cpu"))
    assert got.device == torch.device(OTHER)
    bits = [t.cpu().contiguous().view(torch.uint8) for t in (got, wanted)]
    torch.testing.assert_close(*bits, rtol=0, atol=0)
    assert wanted.isnan().all() if dtype in DTYPES[:4] else not wanted.eq(0).any()


@pytest.mark.usefixtures("deterministic")
def test_the_fill_can_be_switched_off_and_keeps_what_a_resize_keeps():
    x = torch.ones(2, device="maca").resize_(4)
    assert x[:2].tolist() == [1, 1]
    assert x[2:].isnan().all()
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        marked = torch.zeros(1024, device="maca")
        del marked
        assert not torch.empty(1024, device="maca").isnan().any()
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
