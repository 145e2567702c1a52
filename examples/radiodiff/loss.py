"""The decoupled diffusion loss: MSE and L1 on C and on the noise, weighted by the time; and the metric, NMSE."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def add_noise(x0: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """x_t = x0 + C t + sqrt(t) eps with C = -x0: at t = 1 only noise is left."""
    t = time[:, None, None, None]
    return x0 - x0 * t + t.sqrt() * noise


class DecoupledLoss(nn.Module):
    def forward(
        self, predicted_c: Tensor, predicted_noise: Tensor, x0: Tensor, noise: Tensor, time: Tensor
    ) -> dict[str, Tensor]:
        w_c, w_noise = 2 * torch.exp(1 - time), torch.exp(time.sqrt())
        return {
            "c": 0.5 * (w_c * distance(predicted_c.float(), -x0)).mean(),
            "noise": 0.5 * (w_noise * distance(predicted_noise.float(), noise)).mean(),
        }


def distance(predicted: Tensor, target: Tensor) -> Tensor:
    """MSE + L1 of each sample."""
    error = (predicted - target).flatten(1)
    return error.square().mean(dim=1) + error.abs().mean(dim=1)


def nmse(predicted: Tensor, true: Tensor) -> float:
    """Squared error relative to the variance of the maps: 1 is as good as a constant."""
    return ((predicted - true).square().mean() / true.var()).item()
