"""Masked-diffusion cross entropy on the text and epsilon-MSE on the latent."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def cosine_schedule(time: Tensor) -> tuple[Tensor, Tensor]:
    """How much signal and how much noise a latent holds at `time` in [0, 1]."""
    return torch.cos(time * math.pi / 2), torch.sin(time * math.pi / 2)


def add_noise(latent: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    signal, share = cosine_schedule(time)
    return signal[:, None] * latent + share[:, None] * noise


class DiffusionLoss(nn.Module):
    """`text` over the hidden tokens where text is to be written, `latent` where the latent is to be found."""

    def masked_mean(self, ce: Tensor, masked: Tensor) -> Tensor:
        mask = masked.float()
        return (ce * mask).sum() / (mask.sum() + 1e-8)

    def forward(
        self, logits: Tensor, predicted: Tensor, tokens: Tensor, masked: Tensor, noise: Tensor, mode: str
    ) -> dict[str, Tensor]:
        components = {}
        if mode != "t2l":
            ce = F.cross_entropy(logits.float().transpose(1, 2), tokens, reduction="none")
            components["text"] = self.masked_mean(ce, masked)
        if mode != "l2t":
            components["latent"] = F.mse_loss(predicted.float(), noise)
        return components


class StableDiffusionLoss(DiffusionLoss):
    """The loss weights of the config take effect, and a batch without hidden tokens is no division by zero."""

    def __init__(self, text_weight: float, latent_weight: float) -> None:
        super().__init__()
        self.weights = {"text": text_weight, "latent": latent_weight}

    def masked_mean(self, ce: Tensor, masked: Tensor) -> Tensor:
        from stayfinite import ops

        return ops.masked_mean(ce, masked)

    def forward(
        self, logits: Tensor, predicted: Tensor, tokens: Tensor, masked: Tensor, noise: Tensor, mode: str
    ) -> dict[str, Tensor]:
        components = super().forward(logits, predicted, tokens, masked, noise, mode)
        return {name: self.weights[name] * value for name, value in components.items()}
