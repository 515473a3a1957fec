"""Attention on a device that is a GPU under another name: CUDA's choice of kernels, forward and backward.

They run on a GPU only: ``pytest --provider cuda``.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

pytestmark = [pytest.mark.cuda_only, pytest.mark.usefixtures("maca")]

BACKENDS = ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
NAMES = {
    "MATH": "aten::_scaled_dot_product_attention_math",
    "FLASH_ATTENTION": "aten::_scaled_dot_product_flash_attention",
    "EFFICIENT_ATTENTION": "aten::_scaled_dot_product_efficient_attention",
    "CUDNN_ATTENTION": "aten::_scaled_dot_product_cudnn_attention",
}


def attention(device: str, head: int, *, causal: bool, mask: bool, kv_heads: int = 4) -> list[torch.Tensor]:
    """Return the result and the gradients for one set of random inputs, on the CPU."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        drawn = torch.randn(shape, generator=generator).to(torch.float16).to(device)
        return drawn.requires_grad_()

    q, k, v = draw(2, 4, 40, head), draw(2, kv_heads, 40, head), draw(2, kv_heads, 40, head)
    bias = draw(2, 4, 40, 40) if mask else None
    out = F.scaled_dot_product_attention(q, k, v, bias, is_causal=causal, enable_gqa=kv_heads != 4)
    inputs = [q, k, v, *([bias] if mask else [])]
    gradients = torch.autograd.grad(out, inputs, torch.ones_like(out))
    return [t.detach().cpu() for t in (out, *gradients)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("head", "causal", "mask"), [(64, True, False), (60, False, False), (64, False, True)]
)
def test_attention_runs_cudas_fused_kernels(backend, head, causal, mask):
    with sdpa_kernel([getattr(SDPBackend, backend)]):
        try:
            with profile(activities=[ProfilerActivity.CPU]) as run:
                got = attention("maca", head, causal=causal, mask=mask)
        except RuntimeError as refused:
            assert "No available kernel" in str(refused)  # noqa: PT017 - what CUDA says as well, below
            got = None
        with pytest.raises(RuntimeError, match="No available kernel") if got is None else nullcontext():
            wanted = attention_alone("cuda", head, causal=causal, mask=mask)
    if got is not None:
        assert NAMES[backend] in {event.name for event in run.events()}
        exact = attention_float(head, causal=causal, mask=mask)
        for mine, right in zip(got, exact, strict=True):
            torch.testing.assert_close(mine.float(), right, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(got[0], wanted, rtol=0, atol=0)


def attention_alone(device: str, head: int, *, causal: bool, mask: bool) -> torch.Tensor:
    """Return the result on plain CUDA, where no backward is run in this process."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, 4, 40, head)
    q, k, v = (torch.randn(shape, generator=generator).half().to(device).requires_grad_() for _ in range(3))
    bias = torch.randn(2, 4, 40, 40, generator=generator).half().to(device).requires_grad_() if mask else None
    return F.scaled_dot_product_attention(q, k, v, bias, is_causal=causal).detach().cpu()


def attention_float(head: int, *, causal: bool, mask: bool) -> list[torch.Tensor]:
    """Return the same by the formula in float64: softmax(q k^T / sqrt(head) + bias) v."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 40, head)] * 3 + [(2, 4, 40, 40)] * mask
    inputs = [torch.randn(s, generator=generator).half().double().requires_grad_() for s in shapes]
    scores = inputs[0] @ inputs[1].mT / head**0.5
    if mask:
        scores = scores + inputs[3]
    if causal:
        scores = scores.masked_fill(torch.ones(40, 40).triu(1).bool(), float("-inf"))
    out = scores.softmax(-1) @ inputs[2]
    return [t.detach().float() for t in (out, *torch.autograd.grad(out, inputs, torch.ones_like(out)))]


def test_attention_with_fewer_key_heads_is_fused_too():
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        got = attention("maca", 64, causal=True, mask=False, kv_heads=2)
    assert [tuple(t.shape[:2]) for t in got] == [(2, 4), (2, 4), (2, 2), (2, 2)]
    with sdpa_kernel([SDPBackend.MATH]):
        wanted = attention("maca", 64, causal=True, mask=False, kv_heads=2)
    for mine, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, right, rtol=2e-2, atol=2e-2)
