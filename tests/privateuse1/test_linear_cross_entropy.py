"""The chunked linear cross entropy, whose algorithm PyTorch chooses by the device's name."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

Options = getattr(torch.nn, "LinearCrossEntropyOptions", None)
pytestmark = [
    pytest.mark.usefixtures("maca"),
    pytest.mark.skipif(Options is None, reason="this PyTorch has no chunked linear cross entropy"),
]

REDUCTIONS = ["mean", "sum", "none"]


def sample() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, weight = torch.randn(32, 16, dtype=torch.bfloat16), torch.randn(64, 16, dtype=torch.bfloat16)
    return x, weight / 4, torch.randint(64, (32,))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("device", ["cpu", "maca"])
def test_what_torch_chooses_is_within_its_own_tolerance_of_the_formula(device, reduction):
    """PyTorch's ModuleInfo allows bfloat16 5e-2, relative and absolute."""
    x, weight, target = sample()
    wanted = cross_entropy(linear(x.double(), weight.double()), target, reduction=reduction)
    got = torch.nn.functional.linear_cross_entropy(
        x.to(device), weight.to(device), target.to(device), reduction=reduction, options=Options()
    )
    torch.testing.assert_close(got.cpu().double(), wanted, rtol=5e-2, atol=5e-2)


@pytest.mark.sim_only("a GPU's matrix products round otherwise than the CPU's")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("policy", ["accurate", "balanced", "compact"])
def test_the_same_algorithm_gives_the_cpus_loss_and_gradients(policy, reduction):
    options = Options(acc_policy=policy, acc_dtype=torch.float32, chunking_method=None, batch_chunk_size=8)
    results = []
    for device in ("cpu", "maca"):
        x, weight, target = (t.to(device) for t in sample())
        leaves = [x.requires_grad_(), weight.requires_grad_()]
        loss = torch.nn.functional.linear_cross_entropy(*leaves, target, reduction=reduction, options=options)
        results.append([t.cpu() for t in (loss.detach(), *torch.autograd.grad(loss.sum(), leaves))])
    for wanted, got in zip(*results, strict=True):
        assert torch.equal(got, wanted)
