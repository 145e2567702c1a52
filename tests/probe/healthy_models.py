"""Healthy models with their batches: a probe of any of them has nothing to report."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp() -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))
    batch = (torch.randn(16, 8), torch.randint(5, (16,)))
    return model, batch, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), 1e-3)


def cnn() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    return {
        "model": model,
        "batch": lambda: (torch.rand(8, 3, 12, 12), torch.randint(10, (8,))),
        "loss": F.cross_entropy,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
    }


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = x + self.out(torch.softmax(scores.masked_fill(causal, float("-inf")), -1) @ v)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """Returns its own loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(12, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def gpt() -> dict[str, Any]:
    torch.manual_seed(0)
    ids = torch.randint(50, (4, 12))
    model = Gpt()
    return {
        "model": model,
        "batch": {"input_ids": ids, "labels": ids.roll(-1, 1)},
        "optimizer": torch.optim.AdamW(model.parameters(), 3e-4),
    }


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(drawn), mean, log_variance


def vae_loss(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    logits, mean, log_variance = model(batch)
    kl = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(-1).mean()
    return {"reconstruction": F.binary_cross_entropy_with_logits(logits, batch), "kl": 0.1 * kl}


def vae() -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = Vae()
    return model, torch.rand(16, 20), vae_loss, torch.optim.Adam(model.parameters(), 1e-3)


HEALTHY: dict[str, Callable[[], Any]] = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "vae": vae}


def diffusion() -> tuple[Any, ...]:
    """The noise level is an input that is never zero, and the loss is divided by it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        clean, level = batch["clean"], batch["sigma"][:, None]
        noised = clean + level * torch.randn_like(clean)
        out = model(torch.cat([noised / (1 + level**2).sqrt(), level.log() / 4], -1))
        return ((out - clean) ** 2 / level**2).mean()

    return model, {"clean": torch.randn(8, 8), "sigma": torch.rand(8) * 2 + 0.2}, loss


class ShiftedGpt(Gpt):
    """Shifts its labels itself, as models of transformers do, and takes a padding mask."""

    def forward(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        if attention_mask is not None:
            x = x * attention_mask[..., None]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))[:, :-1]
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()), "logits": logits}


def shifted_gpt() -> dict[str, Any]:
    torch.manual_seed(0)
    ids = torch.randint(50, (4, 12))
    mask = torch.ones_like(ids)
    mask[0, 9:] = 0
    return {"model": ShiftedGpt(), "batch": {"input_ids": ids, "labels": ids.clone(), "attention_mask": mask}}


def regression() -> tuple[Any, ...]:
    """A loader as the batch, a layer that takes its shape from it."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(32, 6), torch.randn(32, 1))
    model = nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.Linear(16, 1))
    return model, torch.utils.data.DataLoader(data, batch_size=8), nn.MSELoss()


def autoencoder() -> tuple[Any, ...]:
    """Group norm, transposed convolution, dropout; integers as targets of a segmentation."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1),
        nn.GroupNorm(2, 8),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.ConvTranspose2d(8, 3, 4, 2, 1),
    )
    return model, (torch.rand(4, 1, 8, 8), torch.randint(3, (4, 8, 8))), F.cross_entropy


def contrastive() -> tuple[Any, ...]:
    """Normalised embeddings with the eps of torch, a temperature of 0.1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = (F.normalize(model(view), dim=-1) for view in batch)
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

    x = torch.randn(8, 8)
    return model, (x, x + 0.1 * torch.randn(8, 8)), loss, torch.optim.AdamW(model.parameters(), 1e-3)


HEALTHY |= {"diffusion": diffusion, "shifted gpt": shifted_gpt, "regression": regression, "autoencoder": autoencoder,
            "contrastive": contrastive}  # fmt: skip
