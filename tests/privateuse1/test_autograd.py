"""Training on the device: gradients, modules and optimizers give what they give on the CPU."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from claimed import OTHER
from torch import nn

pytestmark = pytest.mark.usefixtures("maca")


def train(
    model: nn.Module, inputs: torch.Tensor, device: str, optimizer_of: Callable[..., torch.optim.Optimizer]
) -> list[torch.Tensor]:
    """Take two steps on the mean of the squared output; return losses and parameters, on the CPU."""
    model = copy.deepcopy(model).to(device)
    optimizer = optimizer_of(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(2):
        output = model(inputs.to(device))
        loss = (output[0] if isinstance(output, tuple) else output).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return [*losses, *(p.detach().cpu() for p in model.parameters())]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 5, 3, padding=1), (2, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2), (2, 4, 9, 9)),
    "transposed conv2d": (lambda: nn.ConvTranspose2d(3, 5, 3, stride=2), (2, 3, 5, 5)),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.MaxPool2d(2)), (4, 3, 6, 6)),
    "lstm": (lambda: nn.LSTM(5, 7, num_layers=2, batch_first=True), (3, 4, 5)),
    "lstm without bias": (lambda: nn.LSTM(5, 7, bias=False, bidirectional=True), (4, 3, 5)),
    "gru": (lambda: nn.GRU(5, 7, num_layers=2, bidirectional=True), (4, 3, 5)),
    "gru cell": (lambda: nn.GRUCell(5, 7), (3, 5)),
    "lstm cell": (lambda: nn.LSTMCell(5, 7), (3, 5)),
    "rnn": (lambda: nn.RNN(5, 7), (4, 3, 5)),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
        (2, 5, 16),
    ),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU(), nn.RMSNorm(6)), (2, 6)),
}


@pytest.mark.parametrize("device", sorted({"maca:0", OTHER}))
@pytest.mark.parametrize("name", MODELS)
def test_two_steps_of_training_are_those_of_the_cpu(name, device):
    torch.manual_seed(0)
    build, shape = MODELS[name]
    # No model with a gradient that is 0 but for rounding, a key's bias say: AdamW makes whole steps of those.
    adamw = name in ("linear", "conv1d", "conv2d")
    arguments = build(), torch.randn(shape)
    optimizer_of = torch.optim.AdamW if adamw else functools.partial(torch.optim.SGD, momentum=0.9)
    on_device, on_cpu = (train(*arguments, where, optimizer_of) for where in (device, "cpu"))
    torch.testing.assert_close(on_device, on_cpu, rtol=1e-4, atol=1e-5)


def test_packed_sequences_run_through_recurrent_layers():
    torch.manual_seed(0)
    lstm, inputs, lengths = nn.LSTM(5, 7, batch_first=True), torch.randn(3, 4, 5), torch.tensor([4, 2, 1])

    def run(device: str) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(inputs.to(device), lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(lstm.to(device)(packed)[0])[0].cpu()

    torch.testing.assert_close(run("maca"), run("cpu"))


# ---------------------------------------------------------------------------------------- attention --


@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "additive", "trained"])
def test_attention_and_its_gradients_are_the_cpus(mask):
    torch.manual_seed(0)
    leaves = [torch.randn(2, 4, 6, 8) for _ in range(3)]
    extra = {"boolean": torch.ones(6, 6).tril().bool()}.get(mask, torch.randn(6, 6))

    def run(device: str) -> list[torch.Tensor]:
        q, k, v = (t.to(device).requires_grad_() for t in leaves)
        bias = None if mask in ("none", "causal") else extra.to(device)
        if mask == "trained":
            bias.requires_grad_()
        attention = nn.functional.scaled_dot_product_attention
        out = attention(q, k, v, attn_mask=bias, is_causal=mask == "causal")
        wanted = [q, k, v, *([bias] if mask == "trained" else [])]
        return [t.cpu() for t in (out.detach(), *torch.autograd.grad(out.square().sum(), wanted))]

    torch.testing.assert_close(run(OTHER), run("cpu"))


@pytest.mark.sim_only("the kernel of the CPU; of CUDA's see test_shared_cuda_attention.py")
def test_attention_takes_the_fused_kernel_unless_its_mask_is_trained():
    q = torch.randn(1, 2, 6, 8, device="maca", requires_grad=True)
    bias = torch.zeros(6, 6, device="maca", requires_grad=True)
    attention = nn.functional.scaled_dot_product_attention
    assert "FlashAttention" in type(attention(q, q, q).grad_fn).__name__
    assert "FlashAttention" not in type(attention(q, q, q, attn_mask=bias).grad_fn).__name__


# -------------------------------------------------------------------------------- module.to and autograd --


def test_moving_a_module_keeps_parameters_ties_and_optimizer_state():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model[0].weight
    model.to(OTHER)
    assert model[0].weight is before is model[1].weight
    assert before.device == torch.device(OTHER)
    model(torch.tensor([1], device=OTHER)).sum().backward()
    old = before.detach().cpu().clone()
    optimizer.step()
    assert not torch.equal(before.detach().cpu(), old)
    model.cpu()
    assert model[0].weight is before is model[1].weight
    assert before.device.type == "cpu"


def test_lazy_modules_materialise_on_the_device():
    lazy = nn.LazyLinear(3).to("maca")
    assert lazy(torch.ones(2, 5, device="maca")).shape == (2, 3)
    assert lazy.weight.device == torch.device("maca:0")


def test_second_derivatives_and_gradcheck():
    x = torch.randn(3, dtype=torch.float64, device="maca", requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: (t.sin() * t).cumsum(0), x)
    assert torch.autograd.gradgradcheck(lambda t: t.sin() * t.exp(), x)


def test_function_transforms_see_through_the_device():
    x = torch.randn(4, 3, device="maca")
    torch.testing.assert_close(torch.func.vmap(torch.sin)(x), x.sin())
    torch.testing.assert_close(torch.func.grad(lambda t: t.square().sum())(x), 2 * x)
    primal, tangent = torch.func.jvp(torch.exp, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(primal, tangent)
    assert torch.func.jacrev(torch.sin)(x[0]).shape == (3, 3)


def test_a_graph_across_devices_returns_gradients_where_their_leaves_are():
    leaves = [torch.ones(2, device=device, requires_grad=True) for device in ("cpu", "maca:0", "maca:1")]
    sum(leaf.to("maca:1") * (i + 1) for i, leaf in enumerate(leaves)).sum().backward()
    assert [leaf.grad.device for leaf in leaves] == [leaf.device for leaf in leaves]
    assert [leaf.grad.tolist() for leaf in leaves] == [[1, 1], [2, 2], [3, 3]]


def test_an_in_place_write_to_a_saved_tensor_is_noticed():
    x = torch.ones(2, device="maca", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_mode_makes_inference_tensors():
    x = torch.ones(2, device="maca", requires_grad=True)
    with torch.inference_mode():
        y = x * 2
        y.add_(1)
    assert y.is_inference()
    assert y.tolist() == [3, 3]


def test_no_gradient_is_recorded_under_no_grad():
    x = torch.ones(2, device="maca", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_compiled_functions_run_on_the_device():
    compiled = torch.compile(lambda t: (t.sin() + 1).sum(), backend="aot_eager", fullgraph=True)
    x = torch.randn(4, device="maca", requires_grad=True)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
