"""Random numbers come from the device's own generators, explicit or default, one for each device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from claimed import INDEX, OTHER, alias
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("maca")

Draw = Callable[[torch.device, torch.Generator | None], torch.Tensor]

#: One for each way to draw: the function, with a device and a generator.
DRAWS: dict[str, Draw] = {
    "rand": lambda d, g: torch.rand(8, device=d, generator=g),
    "randn": lambda d, g: torch.randn(8, device=d, generator=g),
    "randint": lambda d, g: torch.randint(1000, (8,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(16, device=d, generator=g),
    "normal_": lambda d, g: torch.empty(8, device=d).normal_(generator=g),
    "uniform_": lambda d, g: torch.empty(8, device=d).uniform_(generator=g),
    "bernoulli_": lambda d, g: torch.empty(32, device=d).bernoulli_(0.5, generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((32,), 0.5, device=d), generator=g),
    "exponential_": lambda d, g: torch.empty(8, device=d).exponential_(generator=g),
    "random_": lambda d, g: torch.empty(8, device=d).random_(generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(16, device=d), 8, generator=g),
    "normal out": lambda d, g: torch.normal(torch.zeros(8, device=d), torch.ones(8, device=d), generator=g),
    "poisson": lambda d, g: torch.poisson(torch.full((8,), 9.0, device=d), generator=g),
}


def state(index: int) -> torch.Tensor:
    return torch.get_device_module("maca").default_generators[index].get_state()


@pytest.mark.parametrize("name", DRAWS)
def test_an_explicit_generator_gives_the_numbers_of_the_alias_devices_with_its_seed(name):
    device_generator = torch.Generator(OTHER).manual_seed(7)
    its_generator = torch.Generator(alias(OTHER)).manual_seed(7)
    host, default = torch.get_rng_state(), state(INDEX)
    got = [DRAWS[name](torch.device(OTHER), device_generator) for _ in range(2)]
    wanted = [DRAWS[name](alias(OTHER), its_generator) for _ in range(2)]
    torch.testing.assert_close([t.cpu() for t in got], [t.cpu() for t in wanted], rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.equal(state(INDEX), default)


@pytest.mark.parametrize("name", DRAWS)
def test_the_default_generator_is_the_devices_and_only_it_advances(name):
    torch.manual_seed(3)
    host, other = torch.get_rng_state(), state(0)
    got = DRAWS[name](torch.device(OTHER), None)
    assert torch.equal(torch.get_rng_state(), host)
    assert INDEX == 0 or torch.equal(state(0), other)
    torch.manual_seed(3)
    torch.testing.assert_close(got.cpu(), DRAWS[name](alias(OTHER), None).cpu(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "drop",
    [
        lambda x: torch.nn.functional.dropout(x, 0.4),
        lambda x: torch.nn.functional.alpha_dropout(x, 0.4, training=True),
        lambda x: torch.nn.functional.rrelu(x, training=True),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.4),
        lambda x: torch.nn.functional.gumbel_softmax(x),
    ],
    ids=["dropout", "alpha_dropout", "rrelu", "attention", "gumbel_softmax"],
)
def test_layers_that_draw_use_the_devices_generator_and_repeat_with_its_seed(drop):
    x = torch.randn(1, 1, 64, 16, device="maca")
    torch.manual_seed(5)
    first, host = drop(x), torch.get_rng_state()
    second = drop(x)
    torch.get_device_module("maca").manual_seed(5)
    third = drop(x)
    assert torch.equal(first, third)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), host)


def test_dropout_masks_equal_the_alias_devices_for_equal_seeds():
    x = torch.randn(64, 16)
    results = []
    for device in ("maca", alias("maca")):
        torch.manual_seed(5)
        results.append(torch.nn.functional.dropout(x.to(device), 0.4).cpu())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_native_dropout_keeps_the_mean_and_its_mask_marks_what_is_kept(p):
    torch.manual_seed(1)
    x = torch.ones(10000, device="maca", requires_grad=True)
    out, mask = torch.native_dropout(x, p, True)
    kept = mask.float().mean().item()
    assert kept == pytest.approx(1 - p, abs=0.03)
    torch.testing.assert_close(out, mask / (1 - p) if p < 1 else torch.zeros_like(out))
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())
    identity, all_kept = torch.native_dropout(x, 0.5, False)
    assert torch.equal(identity, x)
    assert all_kept.all()


def test_each_device_has_its_own_sequence(maca):
    maca.manual_seed_all(11)
    first = torch.rand(4, device="maca:0")
    torch.rand(4, device="maca:0")
    second = "maca:1"
    assert torch.equal(torch.rand(4, device=second).cpu(), first.cpu())


def test_state_can_be_saved_and_restored(maca):
    saved = maca.get_rng_state(OTHER)
    first = torch.rand(4, device=OTHER)
    maca.set_rng_state(saved, OTHER)
    assert torch.equal(torch.rand(4, device=OTHER), first)


def test_a_generator_knows_its_device_seed_and_clones():
    generator = torch.Generator(OTHER)
    assert generator.device == torch.device(OTHER)
    assert generator.initial_seed() == torch.Generator().initial_seed()
    generator.manual_seed(9)
    assert generator.initial_seed() == 9
    copy = generator.clone_state()
    assert copy.device == generator.device
    a = torch.rand(4, device=OTHER, generator=generator)
    assert torch.equal(torch.rand(4, device=OTHER, generator=copy), a)


def test_a_generator_of_another_device_type_is_refused():
    with pytest.raises(RuntimeError, match="Expected a 'maca' device type for generator but found 'cpu'"):
        torch.rand(4, device="maca", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="'cpu' device type for generator but found 'maca'"):
        torch.rand(4, generator=torch.Generator("maca"))


def test_a_state_of_another_size_is_refused_in_the_devices_name(maca):
    generator, wrong = torch.Generator("maca"), torch.zeros(5, dtype=torch.uint8)
    size = generator.get_state().numel()
    told = rf"^maca: these 5 bytes are no state .* want what its get_state\(\) returned, {size} bytes"
    for take in (generator.set_state, maca.set_rng_state):
        with pytest.raises(RuntimeError, match=told):
            take(wrong)
    with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
        generator.set_state(torch.zeros(5))


@pytest.mark.sim_only("CUDA's generators have an offset")
def test_an_offset_is_refused_in_the_devices_name():
    with pytest.raises(RuntimeError, match=r"^maca: a generator of this device has no offset, got 4"):
        torch.Generator("maca").set_offset(4)
    torch.Generator("maca").set_offset(0)


def test_fork_rng_brings_the_sequence_back(maca):
    maca.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type="maca"):
        inside = torch.rand(4, device="maca:0")
    assert torch.equal(torch.rand(4, device="maca:0"), inside)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_in_a_backward_draws_the_numbers_of_the_forward(reentrant: bool):
    x = torch.ones(64, device=OTHER, requires_grad=True)
    out = checkpoint(lambda x: dropout(x * 1.0), x, use_reentrant=reentrant)
    torch.rand(4, device=OTHER)
    out.sum().backward()
    assert 0 < out.count_nonzero().item() < 64
    assert torch.equal(x.grad.cpu(), out.detach().cpu())


def test_the_module_says_as_an_attribute_too_whether_the_runtime_has_started(maca):
    torch.ones(1, device="maca")
    assert maca._initialized is True
    with pytest.raises(AttributeError, match=r"module 'torch\.maca' has no attribute '_initialised'"):
        _ = maca._initialised


def test_the_default_generator_is_one_object(maca):
    assert maca.default_generators[INDEX] is maca.default_generators[INDEX]
    assert maca.default_generators[INDEX].device == torch.device(OTHER)
