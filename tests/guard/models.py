"""Small real models for the guard's tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A causal transformer block with a -inf mask in a buffer, as many GPTs have it."""

    def __init__(self, width: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5 + self.mask[:length, :length]
        x = x + self.dropout(self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """A small GPT with tied embeddings."""

    def __init__(
        self, vocabulary: int = 32, width: int = 32, layers: int = 2, length: int = 16, dropout: float = 0.1
    ):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4, length, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))

    def loss(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class CNN(nn.Module):
    """Convolutions with batch norm and dropout."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels * 16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def texts(count: int, seed: int = 0) -> list[Tensor]:
    """Batches of token ids with something to learn: each token follows from the one before."""
    generator = torch.Generator().manual_seed(seed)
    first = [torch.randint(0, 32, (4, 1), generator=generator) for _ in range(count)]
    return [torch.cat([(start * 5 + 3 * i) % 32 for i in range(17)], dim=1)[:, :16] for start in first]


def images(count: int, seed: int = 0, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Images whose class is the brightest quadrant."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        x = torch.randn(size, 1, 8, 8, generator=generator)
        y = torch.randint(0, 4, (size,), generator=generator)
        for i, label in enumerate(y.tolist()):
            row, column = divmod(label, 2)
            x[i, 0, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] += 2.0
        batches.append((x, y))
    return batches
