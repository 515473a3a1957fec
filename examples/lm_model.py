"""A small decoder-only transformer over bytes, whose every normalisation is `torch.ops.tefl.rmsnorm_fwd`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BYTES = 256


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model. `dim` is a multiple of 2 * `heads`, for rotary positions turn pairs of elements."""

    dim: int = 160
    layers: int = 4
    heads: int = 4
    context: int = 128  # bytes the model sees at most

    @property
    def hidden(self) -> int:
        """Width of the SwiGLU layer: 8/3 of `dim`, as costly as a plain layer of 4 `dim`, in steps of 32."""
        return -(-8 * self.dim // 3 // 32) * 32


class RMSNorm(nn.Module):
    """Root mean square normalisation of the last dimension, by whichever implementation tefl chooses."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        out, _rsigma = torch.ops.tefl.rmsnorm_fwd(x, self.weight, self.eps)
        return out


class RotaryPositions(nn.Module):
    """Rotary position embedding (Su et al. 2021): turns pairs of elements by position times frequency."""

    def __init__(self, head_dim: int, context: int, base: float = 10000.0) -> None:
        super().__init__()
        frequencies = base ** (-torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.outer(torch.arange(context), frequencies)  # (context, head_dim / 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rotate `x` of shape (batch, heads, length, head_dim)."""
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.rotate = RotaryPositions(config.dim // config.heads, config.context)
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, head_dim)
        query, key = self.rotate(query), self.rotate(key)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, dim))


class SwiGLU(nn.Module):
    """Gated feed-forward layer (Shazeer 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.dim, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """One layer: attention, then the feed-forward, each normalised first and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.dim)
        self.feed_forward = SwiGLU(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


def next_byte_loss(model: nn.Module, text: Tensor) -> Tensor:
    """Mean cross-entropy, in nats a byte, over all bytes of `text` (batch, length) but the first."""
    logits = model(text[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


class LanguageModel(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(BYTES, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim)
        self.head = nn.Linear(config.dim, BYTES, bias=False)
        self._initialize()

    def _initialize(self) -> None:
        # 0.02 keeps the first logits near zero, so the first loss near ln 256 = 5.55. Layers that write to
        # the residual stream are scaled down by how many of them add up.
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = name.endswith(("attention.out.weight", "down.weight"))
                std = 0.02 / (2 * self.config.layers) ** 0.5 if writes else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, text: Tensor) -> Tensor:
        """Map `text` (batch, length), int64 bytes, to logits (batch, length, 256)."""
        x = self.embedding(text)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    @torch.no_grad()
    def generate(self, prompt: bytes, count: int, draws: torch.Generator, temperature: float = 0.7) -> bytes:
        """Continue `prompt` by `count` bytes, drawn one at a time from the CPU generator `draws`."""
        device = self.embedding.weight.device
        text = list(prompt)
        for _ in range(count):
            seen = torch.tensor([text[-self.config.context :]], device=device)
            logits = self(seen)[0, -1].cpu() / temperature
            text.append(int(torch.multinomial(logits.softmax(-1), 1, generator=draws)))
        return bytes(text)
