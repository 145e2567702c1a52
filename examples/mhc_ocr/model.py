"""Plate reader: ResNet with manifold-constrained hyper-connections, attention over frames, Transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip, as in ResNet-18."""

    def __init__(self, channels_in: int, channels: int, stride: tuple[int, int] = (1, 1)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != (1, 1) or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def branch(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return out

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


def sinkhorn(matrix: Tensor, rounds: int, eps: float = 1e-20) -> Tensor:
    """Rows and columns are normalised in turn until the matrix is doubly stochastic."""
    for _ in range(rounds):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    return matrix


class HyperConnection(nn.Module):
    """n residual streams around one block: y = res x + post F(pre x), the three gates made from the pooled streams."""

    norm_eps = 1e-20
    observe: Callable[..., None] | None = (
        None  # set from outside, it is shown the check points of every forward
    )

    def __init__(self, block: BasicBlock, channels: int, streams: int, alpha: float, rounds: int) -> None:
        super().__init__()
        self.block, self.streams, self.rounds = block, streams, rounds
        self.norm = RMSNorm(streams * channels, self.norm_eps)
        self.phi_pre = nn.Linear(streams * channels, streams)
        self.phi_post = nn.Linear(streams * channels, streams)
        self.phi_res = nn.Linear(streams * channels, streams * streams)
        self.alpha_pre = nn.Parameter(torch.tensor(alpha))
        self.alpha_post = nn.Parameter(torch.tensor(alpha))
        self.alpha_res = nn.Parameter(torch.tensor(alpha))

    def gate_logits(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of the three gates, in float32."""
        pooled = x.mean(dim=(-2, -1)).flatten(1)
        z = self.norm(pooled)
        pre = self.alpha_pre * self.phi_pre(z).float()
        post = self.alpha_post * self.phi_post(z).float()
        res = self.alpha_res * self.phi_res(z).float().view(-1, self.streams, self.streams)
        self.show(pooled=pooled, H=res, alphas=torch.stack([self.alpha_pre, self.alpha_post, self.alpha_res]))
        return pre, post, res

    def show(self, **values: Tensor) -> None:
        if self.observe is not None:
            self.observe(**values)

    def forward(self, x: Tensor) -> Tensor:
        """x is (batch, streams, channels, height, width)."""
        pre, post, res = self.gate_logits(x)
        mixing = sinkhorn(torch.exp(res), self.rounds)
        read = (torch.sigmoid(pre)[:, :, None, None, None] * x).sum(dim=1)
        out: Tensor = self.block(read)
        mixed = torch.einsum("bnn,bnchw->bnchw", mixing, x)
        y = mixed + 2 * torch.sigmoid(post)[:, :, None, None, None] * out[:, None]
        self.show(read_out=read, sublayer=out, streams=y)
        return y


class StableHyperConnection(HyperConnection):
    """The connection as the paper means it: convex read-out, the whole mixing matrix, a block without its own skip."""

    norm_eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        from stayfinite import ops

        pre, post, res = self.gate_logits(x)
        mixing = ops.sinkhorn(res, self.rounds)
        read = (torch.softmax(pre, dim=-1)[:, :, None, None, None] * x).sum(dim=1)
        out = self.block.branch(F.relu(read))
        with torch.autocast(x.device.type, enabled=False):  # the streams stay in float32
            mixed = torch.einsum("bnm,bmchw->bnchw", mixing, x.float())
        y = mixed + 2 * torch.sigmoid(post)[:, :, None, None, None] * out[:, None]
        self.show(read_out=read, sublayer=out, streams=y)
        return y


class Stage(nn.Module):
    """One resolution: a downsampling block where the size changes, then blocks with hyper-connections."""

    def __init__(
        self, channels_in: int, channels: int, depth: int, stride: tuple[int, int], config: dict[str, Any]
    ) -> None:
        super().__init__()
        self.streams = config["streams"]
        downsampling = stride != (1, 1)
        self.down = BasicBlock(channels_in, channels, stride) if downsampling else nn.Identity()
        connection = StableHyperConnection if config["stable"] else HyperConnection
        self.blocks = nn.ModuleList(
            connection(
                BasicBlock(channels, channels),
                channels,
                self.streams,
                config["alpha"],
                config["sinkhorn_rounds"],
            )
            for _ in range(depth - downsampling)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        streams = x[:, None].expand(-1, self.streams, -1, -1, -1)
        for block in self.blocks:
            streams = block(streams)
        return streams.mean(dim=1)


class AttentionFusion(nn.Module):
    """Weighs the frames of a track against each other, one weight per frame and column."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, features: Tensor) -> Tensor:
        """(batch, frames, columns, width) -> (batch, columns, width)"""
        weights = torch.softmax(self.score(features), dim=1)
        return (weights * features).sum(dim=1)


class PlateReader(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        channels, width = config["channels"], config["width"]
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels[0], 4, 4, bias=False), nn.BatchNorm2d(channels[0]), nn.ReLU()
        )
        self.stages = nn.Sequential(  # 8 x 32, 4 x 16, 2 x 16: the last stage keeps the width for CTC
            Stage(channels[0], channels[0], config["depths"][0], (1, 1), config),
            Stage(channels[0], channels[1], config["depths"][1], (2, 2), config),
            Stage(channels[1], channels[2], config["depths"][2], (2, 1), config),
        )
        self.project = nn.Linear(channels[2] * 2, width)
        self.norm = nn.LayerNorm(width)
        self.fusion = AttentionFusion(width)
        self.position = nn.Parameter(torch.randn(16, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width,
            config["attention_heads"],
            2 * width,
            dropout=config["dropout"],
            batch_first=True,
            norm_first=True,
        )
        self.transformer = nn.TransformerEncoder(
            layer, config["transformer_layers"], enable_nested_tensor=False
        )
        self.head = nn.Linear(width, config["classes"])
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, frames: Tensor) -> Tensor:
        """(batch, frames, 3, 32, 128) -> logits (batch, columns, classes)"""
        batch, count = frames.shape[:2]
        x = self.stages(self.stem(frames.flatten(0, 1)))
        x = self.norm(self.project(x.permute(0, 3, 1, 2).flatten(2)))
        x = self.fusion(x.unflatten(0, (batch, count)))
        logits: Tensor = self.head(self.transformer(x + self.position))
        return logits
