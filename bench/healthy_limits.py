"""Healthy trainings that move fast towards a limit, or live near one, and stay well: scales that settle, states that
saturate, small beginnings, masks, counts, rewards."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

Made = tuple[nn.Module, Callable[[], Tensor]]


def counted_events() -> Made:
    """Poisson regression of counts up to ten million: the argument of exp goes from 0 to 16."""
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    weights = torch.randn(6, 1)

    def loss() -> Tensor:
        x = torch.randn(64, 6)
        rate = (x @ weights).tanh() * 3 + 12
        counts = torch.poisson(rate.exp())
        predicted = model(x)
        return ((torch.exp(predicted) - counts * predicted) / counts.mean()).mean()

    return model, loss


def left_saddle() -> Made:
    """A deep linear net of small weights: nothing for a while, then its output grows by decades, up to its targets."""
    layers = [nn.Linear(16, 16, bias=False) for _ in range(8)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.08)
    model, mixing = nn.Sequential(*layers), torch.randn(16, 16)

    def loss() -> Tensor:
        x = torch.randn(32, 16)
        return F.mse_loss(model(x), x @ mixing)

    return model, loss


def additive_masks() -> Made:
    """Scores plus a mask of -30,000, as is usual in float16: large, and there for good."""

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
            scores = self.query(x) @ self.key(x).transpose(1, 2) / 4
            return scores + hidden.to(scores.dtype)[:, None] * -30_000

    model = nn.ModuleDict({"scores": Scores(), "head": nn.Linear(16, 1)})

    def loss() -> Tensor:
        x, lengths = 3 * torch.randn(16, 12, 16), torch.randint(3, 13, (16, 1))
        hidden = torch.arange(12) >= lengths
        with torch.autocast("cpu", torch.float16):
            out = model["head"](model["scores"](x, hidden).softmax(-1) @ x.half())
        wanted = (x[..., :1] * ~hidden[..., None]).sum(1, keepdim=True) / lengths[..., None]
        return F.mse_loss(out.float(), wanted.expand_as(out))

    return model, loss


def leaky_memory() -> Made:
    """A memory that is carried from batch to batch and leaks: it fills up over hundreds of steps, in float16."""

    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.write, self.read = nn.Linear(4, 16), nn.Linear(16, 1)
            self.register_buffer("state", torch.zeros(32, 16))

        def forward(self, x: Tensor) -> Tensor:
            self.state = (0.98 * self.state + self.write(x).float()).detach()
            return self.read(self.state / 50)  # type: ignore[no-any-return]

    model = nn.ModuleDict({"inner": nn.Linear(4, 4), "memory": Memory()})

    def loss() -> Tensor:
        x = 40 + 5 * torch.randn(32, 4)
        with torch.autocast("cpu", torch.float16):
            out = model["memory"](model["inner"](x))
        return F.smooth_l1_loss(out.float(), x[:, :1])

    return model, loss


def summed_loss() -> Made:
    """A sum over pixels: the scaler begins at 65536 and settles a thousand times lower."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))

    def loss() -> Tensor:
        clean = torch.randn(8, 1, 16, 16)
        with torch.autocast("cpu", torch.float16):
            out = model(clean + torch.randn_like(clean))
        return (out.float() - clean).square().sum()

    return model, loss


def rising_rewards() -> Made:
    """Returns that rise from 1 to 4,000 as the policy learns; their values are predicted in float16."""
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    steps, worth = count(), torch.randn(8, 1).abs()

    def loss() -> Tensor:
        state = torch.rand(64, 8)
        returns = (1 + 10 * next(steps)) * (state @ worth)
        with torch.autocast("cpu", torch.float16):
            out = model(state)
        return F.huber_loss(out.float(), returns.clamp(max=4000))

    return model, loss


def spectral_gan() -> Made:
    """Hinge losses, a judge whose layers are divided by their largest singular value."""
    maker = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    judge = nn.Sequential(
        spectral_norm(nn.Linear(2, 64)), nn.LeakyReLU(0.1),
        spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.1), spectral_norm(nn.Linear(64, 1)),
    )  # fmt: skip
    model = nn.ModuleDict({"maker": maker, "judge": judge})

    def loss() -> Tensor:
        angle = torch.rand(64) * 6.283
        real, made = torch.stack([angle.cos(), angle.sin()], 1) * 2, maker(torch.randn(64, 4))
        judged = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(made.detach())).mean()
        fooled = -torch.func.functional_call(
            judge, {k: v.detach() for k, v in judge.named_parameters()}, made
        )
        return judged + fooled.mean()

    return model, loss


def large_start() -> Made:
    """A net without norms whose weights begin ten times too large: thousands at first, in float16, then less."""
    layers = [nn.Linear(32, 32) for _ in range(4)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.8)
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())), nn.Linear(32, 1))

    def loss() -> Tensor:
        x = torch.randn(32, 32)
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        return F.smooth_l1_loss(out.float(), x[:, :1])

    return model, loss


def wide_flow() -> Made:
    """An affine flow of data that are 20,000 wide: its log-scales learn to be near 10, and exp is taken of them."""

    class Coupling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.scale = (
                nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 4)),
                nn.Parameter(torch.zeros(2)),
            )

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            a, b = x.chunk(2, -1)
            shift, log_scale = self.net(a / 20_000).chunk(2, -1)
            log_scale = self.scale + log_scale.tanh()
            return torch.cat([a, (b - shift) / torch.exp(log_scale)], -1), -log_scale.sum(-1)

    model = Coupling()

    def loss() -> Tensor:
        x = torch.randn(64, 4)
        x = 20_000 * torch.cat([x[:, :2], x[:, :2] * 0.5 + 0.2 * x[:, 2:]], -1)
        z, log_det = model(x)
        return (z[:, 2:].abs().sum(-1) - log_det).mean()

    return model, loss


def shrinking_temperature() -> Made:
    """Prototypes with a temperature that is learnt as a divisor and becomes small: scores become large, in float16."""

    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.prototypes = nn.Linear(12, 16), nn.Parameter(torch.randn(6, 16))
            self.temperature = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            alike = F.normalize(self.embed(x), dim=-1) @ F.normalize(self.prototypes, dim=-1).T.to(x.dtype)
            return alike / self.temperature.clamp(min=0.01)

    model, centres = Prototypes(), torch.randn(6, 12)

    def loss() -> Tensor:
        labels = torch.randint(6, (32,))
        with torch.autocast("cpu", torch.float16):
            scores = model(centres[labels] + 0.2 * torch.randn(32, 12))
        return F.cross_entropy(scores.float(), labels)

    return model, loss


KINDS: dict[str, tuple[Callable[[], Made], int, float, str]] = {
    "Poisson, counts of ten million": (counted_events, 500, 1e-1, ""),
    "deep linear net, small weights": (left_saddle, 600, 1e-2, ""),
    "masks added to scores, float16": (additive_masks, 300, 1e-3, "scaler"),
    "leaky memory, float16": (leaky_memory, 500, 1e-3, "scaler"),
    "summed loss, scaler settles at 32": (summed_loss, 300, 1e-3, "scaler"),
    "rewards that rise, float16": (rising_rewards, 800, 1e-2, "scaler"),
    "GAN with spectral norm": (spectral_gan, 400, 1e-3, ""),
    "weights too large at first, float16": (large_start, 400, 1e-2, "scaler"),
    "flow of wide data": (wide_flow, 500, 1e-1, ""),
    "temperature that shrinks, float16": (shrinking_temperature, 500, 1e-2, "scaler"),
}
