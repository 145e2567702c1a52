"""MMDiT over text tokens and one latent token: joint attention, AdaLN, hyper-connections with two residual streams."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD_DIM = 16


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = dim**0.5
        self.gamma = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = F.normalize(x, dim=-1) * self.scale * (self.gamma + 1)
        return normed


class HyperConnection(nn.Module):
    """Mixes the residual streams, reads one input for a branch out of them and writes its output back to all."""

    def __init__(self, dim: int, streams: int, layer: int) -> None:
        super().__init__()
        self.streams = streams
        self.norm = RMSNorm(dim)
        read = F.one_hot(torch.tensor(layer % streams), streams).float()[:, None]
        self.static_alpha = nn.Parameter(torch.cat([read, torch.eye(streams)], dim=1))
        self.dynamic_alpha = nn.Parameter(torch.zeros(dim, streams + 1))
        self.alpha_scale = nn.Parameter(torch.tensor(0.01))
        self.static_beta = nn.Parameter(torch.ones(streams))
        self.dynamic_beta = nn.Parameter(torch.zeros(dim))
        self.beta_scale = nn.Parameter(torch.tensor(0.01))

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """read (B, S, T), mixing (B, S, T, S) and write (B, S, T) for the streams x (B, S, T, D)."""
        normed = self.norm(x)
        alpha = self.alpha_scale * torch.tanh(normed @ self.dynamic_alpha) + self.static_alpha[:, None, :]
        beta = self.beta_scale * torch.tanh(normed @ self.dynamic_beta) + self.static_beta[:, None]
        return alpha[..., 0], alpha[..., 1:], beta

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The branch's input, the mixed streams, and the weights to write the branch's output with."""
        read, mixing, write = self.gates(x)
        branch_input = torch.einsum("bst,bstd->btd", read, x)
        mixed = torch.einsum("bstr,bstd->brtd", mixing, x)
        return branch_input, mixed, write


def doubly_stochastic(logits: Tensor) -> Tensor:
    """Sinkhorn's limit of exp(logits); for two streams it is known in closed form."""
    from stayfinite import ops

    if logits.shape[-1] != 2:
        return ops.sinkhorn(logits)
    stay = torch.sigmoid((logits[..., 0, 0] + logits[..., 1, 1] - logits[..., 0, 1] - logits[..., 1, 0]) / 2)
    return torch.stack([stay, 1 - stay, 1 - stay, stay], dim=-1).reshape(logits.shape)


class StableHyperConnection(HyperConnection):
    """Mixing on the manifold of doubly stochastic matrices, convex read-out, bounded write-in: no growth by mixing."""

    def __init__(self, dim: int, streams: int, layer: int) -> None:
        super().__init__(dim, streams, layer)
        read = 4.0 * F.one_hot(torch.tensor(layer % streams), streams).float()[:, None]
        self.static_alpha = nn.Parameter(torch.cat([read, 4.0 * torch.eye(streams)], dim=1))
        self.static_beta = nn.Parameter(torch.zeros(streams))

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from stayfinite import ops

        with torch.autocast(x.device.type, enabled=False):
            normed = ops.rms_norm(x.float(), self.norm.gamma + 1)
            alpha = self.alpha_scale * torch.tanh(normed @ self.dynamic_alpha) + self.static_alpha[:, None, :]
            beta = self.beta_scale * torch.tanh(normed @ self.dynamic_beta) + self.static_beta[:, None]
            mixing = doubly_stochastic(alpha[..., 1:].transpose(1, 2)).transpose(1, 2)
            return torch.softmax(alpha[..., 0], dim=1), mixing, 2 * torch.sigmoid(beta)


class TimeEmbedding(nn.Module):
    frequencies: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.register_buffer(
            "frequencies", torch.exp(-math.log(1000.0) * torch.arange(dim // 2) / (dim // 2)) * 100
        )

    def forward(self, time: Tensor) -> Tensor:
        angles = time[:, None] * self.frequencies
        out: Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.frequencies.dtype))
        return out


class Modality(nn.Module):
    """The weights that text and latent have each for themselves in a block."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """AdaLN: a LayerNorm whose shift and scale come from the time."""
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale[:, None]) + shift[:, None]


class Block(nn.Module):
    """Joint attention over all tokens, then an MLP, each behind a hyper-connection."""

    def __init__(self, dim: int, heads: int, streams: int, layer: int, stable: bool, qk_norm: bool) -> None:
        super().__init__()
        self.heads, self.qk_norm = heads, qk_norm
        self.text, self.latent = Modality(dim), Modality(dim)
        connection = StableHyperConnection if stable else HyperConnection
        self.attention_streams = connection(dim, streams, 2 * layer)
        self.mlp_streams = connection(dim, streams, 2 * layer + 1)

    def attention(self, text: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        qkv = torch.cat([self.text.qkv(text), self.latent.qkv(latent)], dim=1)
        q, k, v = qkv.reshape(*qkv.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.qk_norm:
            q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.text.out(mixed[:, :-1]), self.latent.out(mixed[:, -1:])

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x is (batch, streams, tokens + 1, dim); the last token is the latent."""
        text_mod = self.text.modulation(F.silu(time)).chunk(6, dim=-1)
        latent_mod = self.latent.modulation(F.silu(time)).chunk(6, dim=-1)

        h, x, write = self.attention_streams(x)
        text, latent = self.attention(
            modulate(h[:, :-1], *text_mod[:2]), modulate(h[:, -1:], *latent_mod[:2])
        )
        out = torch.cat([text * (1 + text_mod[2][:, None]), latent * (1 + latent_mod[2][:, None])], dim=1)
        x = x + write[..., None] * out[:, None]

        h, x, write = self.mlp_streams(x)
        text = self.text.mlp(modulate(h[:, :-1], *text_mod[3:5]))
        latent = self.latent.mlp(modulate(h[:, -1:], *latent_mod[3:5]))
        out = torch.cat([text * (1 + text_mod[5][:, None]), latent * (1 + latent_mod[5][:, None])], dim=1)
        streams: Tensor = x + write[..., None] * out[:, None]
        return streams


class LatentDLM(nn.Module):
    def __init__(self, config: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        dim, stable = config["dim"], config["stable"]
        heads = config["n_heads"] if stable else dim // HEAD_DIM
        self.streams = config["streams"]
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Parameter(torch.randn(config["length"], dim))
        self.latent_in = nn.Linear(config["latent_dim"], dim)
        self.text_time, self.latent_time = TimeEmbedding(dim), TimeEmbedding(dim)
        self.blocks = nn.ModuleList(
            Block(dim, heads, self.streams, layer, stable, stable and config["qk_rmsnorm"])
            for layer in range(config["depth"])
        )
        self.norm = nn.LayerNorm(dim)
        self.text_out = nn.Linear(dim, vocabulary)
        self.latent_out = nn.Linear(dim, config["latent_dim"])

    def forward(
        self, tokens: Tensor, latent: Tensor, text_time: Tensor, latent_time: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits of the text (B, L, V) and the noise in the latent (B, D)."""
        dtype = self.positions.dtype
        time = self.text_time(text_time) + self.latent_time(latent_time)
        text = self.tokens(tokens) + self.positions
        x = torch.cat([text, self.latent_in(latent.to(dtype))[:, None]], dim=1)
        x = x[:, None].expand(-1, self.streams, -1, -1)
        for block in self.blocks:
            x = block(x, time)
        out = self.norm(x.sum(dim=1))
        return self.text_out(out[:, :-1]), self.latent_out(out[:, -1])
