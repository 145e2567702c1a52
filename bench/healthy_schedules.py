"""Healthy trainings that something outside the model changes: rates, data, teachers, rewards, noise, weights of losses.

Each function trains a model of its own to the end under a guard that `watched` makes; it gives its losses.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from healthy_learning import Losses, Watched, lost
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, OneCycleLR


def _mlp(*wide: int) -> nn.Sequential:
    parts = [part for a, b in pairwise(wide) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def restarts_that_lengthen(watched: Watched, steps: int) -> Losses:
    """Warm restarts, each cycle twice as long as the last, momentum, float16 with a scaler."""
    model, target = _mlp(8, 64, 64, 4), nn.Linear(8, 4)
    opt = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
    guard = watched(
        model, opt, CosineAnnealingWarmRestarts(opt, 20, 2), torch.amp.GradScaler("cpu"), clip_norm=1.0
    )

    def loss() -> Tensor:
        x = torch.randn(64, 8)
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        return F.cross_entropy(out.float(), target(x).argmax(-1))

    return [lost(guard.step(loss).loss) for _ in range(steps)]


def one_cycle(watched: Watched, steps: int) -> Losses:
    """OneCycleLR, which lowers the momentum while the rate rises; labels that become softer and softer."""
    model, target = _mlp(8, 64, 64, 4), nn.Linear(8, 4)
    opt = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.95)
    guard = watched(model, opt, OneCycleLR(opt, 0.5, total_steps=steps + 1))
    losses = []
    for step in range(steps):
        soft = 0.3 * step / steps

        def loss(soft: float = soft) -> Tensor:
            x = torch.randn(64, 8)
            return F.cross_entropy(model(x), target(x).argmax(-1), label_smoothing=soft)

        losses.append(lost(guard.step(loss).loss))
    return losses


def own_words(watched: Watched, steps: int) -> Losses:
    """A recurrent decoder that is given the right words at first, then its own ones; sequences that grow."""
    model = nn.ModuleDict(
        {"embed": nn.Embedding(12, 24), "cell": nn.GRUCell(24, 48), "head": nn.Linear(48, 12)}
    )
    guard = watched(model, torch.optim.Adam(model.parameters(), 5e-3), clip_norm=1.0)
    losses = []
    for step in range(steps):
        own, length = step / steps, 4 + 20 * step // steps

        def loss(own: float = own, length: int = length) -> Tensor:
            words = (
                torch.randint(12, (16, 1)) + torch.randint(1, 3, (16, 1)) * torch.arange(length + 2)
            ) % 12
            state, given, total = torch.zeros(16, 48), words[:, 0], torch.zeros(())
            for place in range(1, length):
                state = model["cell"](model["embed"](given), state)
                out = model["head"](state)
                total = total + F.cross_entropy(out, words[:, place])
                given = out.argmax(-1) if torch.rand(()) < own else words[:, place]
            return total / length

        losses.append(lost(guard.step(loss).loss))
    return losses


def averaged_teacher(watched: Watched, steps: int) -> Losses:
    """A student that follows an average of itself, with a centre and a temperature that falls; bfloat16."""
    student = _mlp(12, 64, 32)
    teacher = copy.deepcopy(student).requires_grad_(False)
    guard = watched({"student": student, "teacher": teacher}, torch.optim.AdamW(student.parameters(), 1e-3))
    centre = torch.zeros(32)
    losses = []
    for step in range(steps):
        sharp, keep = 0.07 - 0.03 * step / steps, 0.99 + 0.009 * step / steps

        def loss(sharp: float = sharp) -> Tensor:
            x = torch.randn(64, 12)
            with torch.autocast("cpu", torch.bfloat16):
                told = teacher(x + 0.1 * torch.randn_like(x)).float()
                said = student(x + 0.1 * torch.randn_like(x)).float()
            wanted = ((told - centre) / sharp).softmax(-1)
            centre.lerp_(told.mean(0), 0.1)
            return -(wanted * (said / 0.1).log_softmax(-1)).sum(-1).mean()

        losses.append(lost(guard.step(loss).loss))
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.lerp_(theirs, 1 - keep)
    return losses


def larger_rewards(watched: Watched, steps: int) -> Losses:
    """A policy gradient whose rewards become 100 times as large halfway, divided by their running spread."""
    model = _mlp(4, 32, 3)
    guard = watched(model, torch.optim.Adam(model.parameters(), 3e-3), clip_norm=0.5)
    spread = 1.0
    losses = []
    for step in range(steps):
        state = torch.randn(64, 4)
        choice = torch.distributions.Categorical(logits=model(state).detach()).sample()
        reward = (choice == state[:, :3].argmax(-1)).float() * (100 if step > steps // 2 else 1)
        spread = 0.95 * spread + 0.05 * float(reward.std())
        gain = (reward - reward.mean()) / (spread + 1e-3)

        def loss(state: Tensor = state, choice: Tensor = choice, gain: Tensor = gain) -> Tensor:
            chosen = model(state).log_softmax(-1).gather(1, choice[:, None]).squeeze(1)
            return -(chosen * gain).mean()

        losses.append(lost(guard.step(loss).loss))
    return losses


def fresh_head(watched: Watched, steps: int) -> Losses:
    """A trained body with a head that begins at 0 and learns thirty times as fast; bfloat16 autocast."""
    body, head = _mlp(8, 64, 64), nn.Linear(64, 4)
    nn.init.zeros_(head.weight)
    model, target = nn.Sequential(body, nn.LayerNorm(64), head), nn.Linear(8, 4)
    opt = torch.optim.AdamW(
        [{"params": body.parameters(), "lr": 1e-4}, {"params": model[1:].parameters(), "lr": 3e-3}],
        weight_decay=0.01,
    )
    guard = watched(model, opt)

    def loss() -> Tensor:
        x = torch.randn(64, 8)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        return F.cross_entropy(out.float(), target(x).argmax(-1))

    return [lost(guard.step(loss).loss) for _ in range(steps)]


def accumulated(watched: Watched, steps: int) -> Losses:
    """A plain loop: four micro-batches to an update, float16, a scaler that is unscaled before clipping."""
    model, target = _mlp(8, 64, 64, 1), nn.Linear(8, 1)
    opt, scaler = torch.optim.AdamW(model.parameters(), 1e-3), torch.amp.GradScaler("cpu", growth_interval=40)
    guard = watched(model, opt, scaler=scaler)
    losses = []
    for _ in guard.watch(range(steps)):
        for _ in range(4):
            x = torch.randn(16, 8)
            with torch.autocast("cpu", torch.float16):
                out = model(x)
            loss = F.mse_loss(out.float(), target(x)) / 4
            scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        losses.append(4 * loss.item())
    return losses


def less_dropout(watched: Watched, steps: int) -> Losses:
    """Dropout that falls from 0.6 to 0: what it leaves is enlarged less and less."""
    dropout = nn.Dropout(0.6)
    model = nn.Sequential(
        nn.Linear(8, 128), nn.ReLU(), dropout, nn.Linear(128, 64), nn.ReLU(), dropout, nn.Linear(64, 4)
    )
    target = nn.Linear(8, 4)
    guard = watched(model, torch.optim.Adam(model.parameters(), 3e-3))
    losses = []
    for step in range(steps):
        dropout.p = 0.6 * max(0.0, 1 - 1.25 * step / steps)

        def loss() -> Tensor:
            x = torch.randn(64, 8)
            return F.cross_entropy(model(x), target(x).argmax(-1))

        losses.append(lost(guard.step(loss).loss))
    return losses


def warmed_up_divergence(watched: Watched, steps: int) -> Losses:
    """A VAE whose divergence weighs nothing at first: its means spread and its variances shrink, then come back."""
    model = nn.ModuleDict({"encoder": _mlp(16, 64, 16), "decoder": _mlp(8, 64, 16)})
    mixing = torch.randn(4, 16)
    guard = watched(model, torch.optim.Adam(model.parameters(), 3e-3), clip_norm=5.0)
    losses = []
    for step in range(steps):
        weight = max(0.0, min(1.0, (step - steps / 3) / (steps / 3)))

        def loss(weight: float = weight) -> Tensor:
            x = torch.randn(64, 4) @ mixing
            mean, spread = model["encoder"](x).chunk(2, -1)
            out = model["decoder"](mean + torch.exp(0.5 * spread) * torch.randn_like(mean))
            divergence = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(-1).mean()
            return F.mse_loss(out, x) * 16 + weight * divergence

        losses.append(lost(guard.step(loss).loss))
    return losses


def sharp_attention(watched: Watched, steps: int) -> Losses:
    """float16 attention without any norm that learns to look at one token: its scores grow to where it is sure."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return (self.query(x) @ self.key(x).transpose(1, 2)).softmax(-1)

    model = Lookup()
    guard = watched(model, torch.optim.AdamW(model.parameters(), 1e-2), scaler=torch.amp.GradScaler("cpu"))

    def loss() -> Tensor:
        x = 2 * torch.randn(8, 16, 32)
        with torch.autocast("cpu", torch.float16):
            weights = model(x)
        return -weights.float().diagonal(dim1=1, dim2=2).clamp_min(1e-6).log().mean()

    return [lost(guard.step(loss).loss) for _ in range(steps)]


def routed(watched: Watched, steps: int) -> Losses:
    """Experts that a router chooses, with a loss that balances them and one that keeps its logits small; float16."""
    model = nn.ModuleDict(
        {"router": nn.Linear(8, 4), "experts": nn.ModuleList(_mlp(8, 32, 4) for _ in range(4))}
    )
    target = _mlp(8, 16, 4)
    guard = watched(model, torch.optim.AdamW(model.parameters(), 3e-3), scaler=torch.amp.GradScaler("cpu"))

    def loss() -> Tensor:
        x = torch.randn(64, 8)
        with torch.autocast("cpu", torch.float16):
            logits = model["router"](x).float()
            out = torch.stack([expert(x) for expert in model["experts"]], 1).float()
        chance, taken = logits.softmax(-1), F.one_hot(logits.argmax(-1), 4).float()
        mixed = (out * (chance * taken)[..., None]).sum(1)
        balance = 4 * (chance.mean(0) * taken.mean(0)).sum() + 1e-3 * logits.logsumexp(-1).square().mean()
        return F.cross_entropy(mixed, target(x).argmax(-1)) + 0.01 * balance

    return [lost(guard.step(loss).loss) for _ in range(steps)]


def heavier_equation(watched: Watched, steps: int) -> Losses:
    """A physics-informed net: second derivatives, and a residual whose weight goes from 1 to 1,000."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    guard = watched(model, torch.optim.Adam(model.parameters(), 1e-3), clip_norm=1.0)
    losses = []
    for step in range(steps):
        weight = 1000 ** (step / steps)

        def loss(weight: float = weight) -> Tensor:
            x = torch.rand(64, 1, requires_grad=True)
            y = model(x)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
            ends = model(torch.tensor([[0.0], [1.0]]))
            return weight * (bend + 9.87 * torch.sin(3.1416 * x)).square().mean() / 1000 + ends.square().sum()

        losses.append(lost(guard.step(loss).loss))
    return losses


KINDS: dict[str, tuple[Callable[[Watched, int], Losses], int]] = {
    "restarts that lengthen, float16": (restarts_that_lengthen, 300),
    "one cycle, softer labels": (one_cycle, 300),
    "teacher forcing that ends": (own_words, 150),
    "averaged teacher, bfloat16": (averaged_teacher, 300),
    "rewards times 100, normalised": (larger_rewards, 300),
    "fresh head, bfloat16": (fresh_head, 300),
    "accumulation with a scaler, float16": (accumulated, 200),
    "dropout that ends": (less_dropout, 300),
    "VAE, divergence from 0": (warmed_up_divergence, 300),
    "attention that sharpens, float16": (sharp_attention, 300),
    "routed experts, float16": (routed, 300),
    "equation, heavier and heavier": (heavier_equation, 200),
}
