"""A mixture-of-experts teacher, a small dense student, and the projector between their hidden states."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Output(NamedTuple):
    logits: Tensor  # (batch, length, vocabulary)
    hidden: Tensor  # (batch, length, dim), after the last norm
    routers: list[Tensor]  # per layer the gate's logits over the experts; empty for a dense model


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, dim))
        return out


class FeedForward(nn.Module):
    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, width)
        self.down = nn.Linear(width, dim)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.up(x)))
        return out


class MixtureOfExperts(nn.Module):
    """Each token goes to its `top_k` experts, weighted by the gate."""

    def __init__(self, dim: int, width: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(dim, width) for _ in range(experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        router = self.gate(x)
        values, chosen = router.topk(self.top_k, dim=-1)
        weights = torch.zeros_like(router).scatter(-1, chosen, torch.softmax(values, dim=-1).to(router.dtype))
        # Every expert sees every token: simpler than dispatching, and cheap at this size.
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (outputs * weights.unsqueeze(-2)).sum(dim=-1), router


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = mlp

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = x + self.attention(self.attention_norm(x))
        out = self.mlp(self.mlp_norm(x))
        mixed, router = out if isinstance(out, tuple) else (out, None)
        return x + mixed, router


class LanguageModel(nn.Module):
    """A causal transformer; with `experts` its feed-forward layers are mixtures."""

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        layers: int,
        heads: int,
        length: int,
        experts: int = 0,
        top_k: int = 2,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, dim)
        self.positions = nn.Embedding(length, dim)

        def mlp() -> nn.Module:
            return MixtureOfExperts(dim, 2 * dim, experts, top_k) if experts else FeedForward(dim, 4 * dim)

        self.blocks = nn.ModuleList(Block(dim, heads, mlp()) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Output:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        routers = []
        for block in self.blocks:
            x, router = block(x)
            if router is not None:
                routers.append(router)
        hidden = self.norm(x)
        return Output(self.head(hidden), hidden, routers)

    def gates(self) -> list[nn.Linear]:
        """The routers of a mixture-of-experts model."""
        return [module.gate for module in self.modules() if isinstance(module, MixtureOfExperts)]


class Distillation(nn.Module):
    """Teacher, student and projector. Of the teacher only the gates are trained."""

    def __init__(self, teacher: LanguageModel, student: LanguageModel) -> None:
        super().__init__()
        self.teacher = teacher.requires_grad_(False)
        for gate in teacher.gates():
            gate.requires_grad_(True)
        self.student = student
        self.projector = nn.Linear(student.norm.weight.numel(), teacher.norm.weight.numel())

    def trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]
