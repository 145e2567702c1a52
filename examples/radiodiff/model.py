"""Latent U-Net with a condition branch, weight-standardised convolutions and attention at the bottom."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WeightStandardizedConv2d(nn.Conv2d):
    """Each filter gets mean 0 and variance 1 before it is used."""

    def forward(self, x: Tensor) -> Tensor:
        eps = 1e-5 if x.dtype == torch.float32 else 1e-3
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        var = self.weight.var(dim=(1, 2, 3), unbiased=False, keepdim=True)
        weight = (self.weight - mean) * (var + eps).rsqrt()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class ScaledWeightStandardizedConv2d(nn.Conv2d):
    """The same, divided by the square root of the fan-in, so that it keeps the size of its input."""

    def forward(self, x: Tensor) -> Tensor:
        fan_in = self.weight[0].numel()
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        var = self.weight.var(dim=(1, 2, 3), unbiased=False, keepdim=True)
        weight = (self.weight - mean) * (fan_in * (var + 1e-5)).rsqrt()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class TimeEmbedding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, time: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(self.dim // 2) / (self.dim // 2)) * 1000
        angles = time[:, None] * frequencies
        out: Tensor = self.mlp(torch.cat([angles.sin(), angles.cos()], dim=-1))
        return out


class ConvBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stable: bool) -> None:
        super().__init__()
        conv = ScaledWeightStandardizedConv2d if stable else WeightStandardizedConv2d
        self.conv = conv(channels_in, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, x: Tensor, shift_scale: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = self.norm(self.conv(x))
        if shift_scale is not None:
            shift, scale = shift_scale
            x = x * (scale + 1) + shift
        return F.silu(x)


class ResnetBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, time_dim: int, stable: bool) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, 2 * channels))
        self.block1 = ConvBlock(channels_in, channels, stable)
        self.block2 = ConvBlock(channels, channels, stable)
        self.skip = nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift, scale = self.time(time)[:, :, None, None].chunk(2, dim=1)
        h: Tensor = self.block2(self.block1(x, (shift, scale))) + self.skip(x)
        return h


class Attention(nn.Module):
    def __init__(self, channels: int, stable: bool) -> None:
        super().__init__()
        self.factor = channels**-0.5 if stable else 1.0
        self.norm = nn.GroupNorm(1, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, dim=1)
        weights = torch.softmax(torch.einsum("bci,bcj->bij", q * self.factor, k), dim=-1)
        h: Tensor = x + self.out(torch.einsum("bij,bcj->bci", weights, v).reshape(x.shape))
        return h


class ConditionEncoder(nn.Module):
    """Buildings and transmitter, brought to the size of the latent."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, channels, 4, 4), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)
        )

    def forward(self, condition: Tensor) -> Tensor:
        out: Tensor = self.layers(condition)
        return out


class ConditionalUNet(nn.Module):
    """Predicts both parts of the noisy latent: C (the way from the map to nothing) and the noise."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        latent, base, stable = config["latent_channels"], config["channels"], config["stable"]
        self.time = TimeEmbedding(base)
        self.condition = ConditionEncoder(base)
        self.stem = nn.Conv2d(latent, base, 3, padding=1)
        self.down1 = ResnetBlock(2 * base, base, base, stable)
        self.down2 = ResnetBlock(base, base, base, stable)
        self.shrink = nn.Conv2d(base, 2 * base, 2, 2)
        self.middle1 = ResnetBlock(2 * base, 2 * base, base, stable)
        self.attention = Attention(2 * base, stable)
        self.middle2 = ResnetBlock(2 * base, 2 * base, base, stable)
        self.grow = nn.ConvTranspose2d(2 * base, base, 2, 2)
        self.up1 = ResnetBlock(2 * base, base, base, stable)
        self.up2 = ResnetBlock(2 * base, base, base, stable)
        self.head_c = nn.Sequential(ConvBlock(base, base, stable), nn.Conv2d(base, latent, 1))
        self.head_noise = nn.Sequential(ConvBlock(base, base, stable), nn.Conv2d(base, latent, 1))

    def forward(self, x: Tensor, time: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        t = self.time(time)
        x = torch.cat([self.stem(x), self.condition(condition)], dim=1)
        skip1 = self.down1(x, t)
        skip2 = self.down2(skip1, t)
        x = self.middle2(self.attention(self.middle1(self.shrink(skip2), t)), t)
        x = self.up1(torch.cat([self.grow(x), skip2], dim=1), t)
        x = self.up2(torch.cat([x, skip1], dim=1), t)
        return self.head_c(x), self.head_noise(x)
