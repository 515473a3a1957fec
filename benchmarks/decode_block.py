"""A transformer block of Llama 3's shape as it runs when one token is decoded: small kernels, many launches.

The RMSNorm is a function, so that the same block with the same weights can be timed with two of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["HIDDEN", "DecodeBlock"]

Norm = Callable[[Tensor, Tensor], Tensor]
"""Of rows and a weight."""

HIDDEN, HEADS, KV_HEADS, HEAD, FFN = 4096, 32, 8, 128, 14336
BASE = 500_000.0  # of the rotary embedding
CACHED = 1024  # tokens


class DecodeBlock(nn.Module):
    """Attention over cached tokens and the new one, then a SwiGLU; random weights, bfloat16, on a GPU."""

    cos: Tensor
    sin: Tensor
    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        sizes = {"q": HEADS * HEAD, "k": KV_HEADS * HEAD, "v": KV_HEADS * HEAD}
        self.project = nn.ModuleDict({n: nn.Linear(HIDDEN, size, bias=False) for n, size in sizes.items()})
        self.attended = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.gate, self.up = (nn.Linear(HIDDEN, FFN, bias=False) for _ in range(2))
        self.down = nn.Linear(FFN, HIDDEN, bias=False)
        self.before_attention, self.before_ffn = (nn.Parameter(torch.ones(HIDDEN)) for _ in range(2))
        angles = CACHED * BASE ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("cos", torch.cat([angles.cos()] * 2))
        self.register_buffer("sin", torch.cat([angles.sin()] * 2))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(1, KV_HEADS, CACHED + 1, HEAD))
        self.to(device="cuda", dtype=torch.bfloat16).requires_grad_(False)

    def forward(self, x: Tensor, norm: Norm) -> Tensor:
        """The hidden state of one token, (1, 4096), after the block."""
        x = x + self.attend(norm(x, self.before_attention))
        h = norm(x, self.before_ffn)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def attend(self, h: Tensor) -> Tensor:
        q, k, v = (self.project[name](h).view(1, -1, 1, HEAD) for name in "qkv")
        self.keys[:, :, -1:] = self.rotated(k)
        self.values[:, :, -1:] = v
        out = F.scaled_dot_product_attention(self.rotated(q), self.keys, self.values, enable_gqa=True)
        return self.attended(out.view(1, -1))

    def rotated(self, t: Tensor) -> Tensor:
        low, high = t.chunk(2, -1)
        return t * self.cos + torch.cat((-high, low), -1) * self.sin
