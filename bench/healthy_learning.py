"""Healthy trainings in which something grows because the learning goes well, or rests for a while and goes on.

Each function trains a model of its own to the end under a guard that `watched` makes; it gives its losses.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from stayfinite import Guard

Losses = list[float]
Watched = Callable[..., Guard]
"""As Guard is made, but for the folder."""


def lost(loss: float | None) -> float:
    assert loss is not None, "a step that is waited for has a loss"
    return loss


def free_lengths(watched: Watched, steps: int) -> Losses:
    """Weight norm, no decay: the learnt lengths of the filters grow as long as the classes can be told apart better."""
    layers = [weight_norm(nn.Linear(wide, 32)) for wide in (8, 32, 32)]
    model = nn.Sequential(
        layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], nn.ReLU(), weight_norm(nn.Linear(32, 4))
    )
    target = nn.Linear(8, 4)
    guard = watched(model, torch.optim.Adam(model.parameters(), 1e-2))

    def loss() -> Tensor:
        x = torch.randn(64, 8)
        return F.cross_entropy(model(x), target(x).argmax(-1))

    return [lost(guard.step(loss).loss) for _ in range(steps)]


def free_critic(watched: Watched, steps: int) -> Losses:
    """A Wasserstein GAN with its penalty: the critic's outputs may stand anywhere, and wander; two optimizers."""
    maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(
        nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.0, 0.9))
    of_maker = torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.0, 0.9))
    guard = watched({"maker": maker, "critic": critic}, [of_critic, of_maker])

    def distance() -> Tensor:
        real, made = torch.randn(32, 2) + 20, maker(torch.randn(32, 4)).detach()
        between = (real.lerp(made, torch.rand(32, 1))).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        return (critic(made) - critic(real)).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    losses = []
    for _ in range(steps):
        losses.append(lost(guard.step(distance, optimizer=of_critic).loss))
        guard.step(lambda: -critic(maker(torch.randn(32, 4))).mean(), optimizer=of_maker)
    return losses


def longer_lives(watched: Watched, steps: int) -> Losses:
    """REINFORCE with a learnt baseline: an agent that falls over less and less, so that its returns grow."""
    model = nn.ModuleDict({"policy": nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))})
    model["value"] = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    guard = watched(model, torch.optim.Adam(model.parameters(), 1e-2))

    def loss() -> Tensor:
        place, alive = torch.randn(32, 2) * 0.1, torch.ones(32, dtype=torch.bool)
        chosen, seen, lived = [], [], []
        for _ in range(200):
            actions = torch.distributions.Categorical(logits=model["policy"](place))
            action = actions.sample()
            chosen.append(actions.log_prob(action))
            seen.append(place)
            lived.append(alive)
            speed = place[:, 1] + 0.1 * (2 * action - 1) + 0.1 * place[:, 0] + 0.02 * torch.randn(32)
            place = torch.stack([place[:, 0] + 0.3 * speed, speed], 1)
            alive = alive & (place[:, 0].abs() < 1)
            if not alive.any():
                break
        lives = torch.stack(lived).float()
        returns = lives.flip(0).cumsum(0).flip(0)  # of what is still to come
        values = model["value"](torch.stack(seen)).squeeze(-1)
        better = (returns - values).detach()
        gain = (torch.stack(chosen) * better * lives).sum(0).mean()
        return F.smooth_l1_loss(values * lives, returns) - gain / 100

    return [lost(guard.step(loss).loss) for _ in range(steps)]


def discounted_values(watched: Watched, steps: int) -> Losses:
    """Q-learning on its own estimates: every copy of the target network lifts the values, up to 1 / (1 - 0.99)."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))

    model, target = network(), network()
    target.load_state_dict(model.state_dict())
    guard = watched(model, torch.optim.Adam(model.parameters(), 3e-3))
    losses = []
    for step in range(steps):
        if step % 10 == 0:
            target.load_state_dict(model.state_dict())
        now, after, action = torch.randn(64, 4), torch.randn(64, 4), torch.randint(3, (64, 1))
        with torch.no_grad():
            wanted = 1 + 0.1 * now[:, :1] + 0.99 * target(after).max(1, keepdim=True).values

        def loss(now: Tensor = now, action: Tensor = action, wanted: Tensor = wanted) -> Tensor:
            return F.smooth_l1_loss(model(now).gather(1, action), wanted)

        losses.append(lost(guard.step(loss).loss))
    return losses


def harder_tasks(watched: Watched, steps: int) -> Losses:
    """A curriculum: every hundred steps a harder task begins, and the loss jumps to five times what it was."""
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16))
    tasks = [nn.Linear(8, 16) for _ in range(4)]
    guard = watched(model, torch.optim.AdamW(model.parameters(), 3e-3), clip_norm=1.0)
    losses = []
    for step in range(steps):
        known = min(4, 1 + step // 100)

        def loss(known: int = known) -> Tensor:
            x = torch.randn(64, 8)
            kinds = torch.randint(known, (64,))
            wanted = torch.stack([task(x).argmax(-1) for task in tasks])[kinds, torch.arange(64)]
            return F.cross_entropy(model(x + 3 * kinds[:, None]), wanted)

        losses.append(lost(guard.step(loss).loss))
    return losses


def more_micro_batches(watched: Watched, steps: int) -> Losses:
    """A plain loop that adds up the gradients of 1, then 2, 4 and 8 micro-batches, not averaged: their norm grows."""
    model, target = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 2e-3, momentum=0.9)
    guard = watched(model, optimizer)
    losses = []
    for step in guard.watch(range(steps)):
        optimizer.zero_grad()
        for _ in range(2 ** min(3, step // 80)):
            x = torch.randn(16, 8)
            loss = F.mse_loss(model(x), target(x))
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def scale_that_climbs(watched: Watched, steps: int) -> Losses:
    """float16 with a loss so small that the scale doubles for thousands of steps, far beyond where it began."""
    model, target = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), nn.Linear(8, 4)
    scaler = torch.amp.GradScaler("cpu", growth_interval=50)
    guard = watched(model, torch.optim.AdamW(model.parameters(), 1e-3), scaler=scaler)

    def loss() -> Tensor:
        x = torch.randn(32, 8)
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        return 1e-6 * F.cross_entropy(logits.float(), target(x).argmax(-1))

    return [lost(guard.step(loss).loss) for _ in range(steps)]


def surer_predictions(watched: Watched, steps: int) -> Losses:
    """A Gaussian likelihood with a learnt variance: with little noise in the data exp(-log variance) grows."""
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    target = nn.Linear(4, 1)
    guard = watched(model, torch.optim.Adam(model.parameters(), 3e-3), clip_norm=1.0)

    def loss() -> Tensor:
        x = torch.randn(64, 4)
        mean, log_variance = model(x).chunk(2, 1)
        wanted = target(x) + 0.01 * torch.randn(64, 1)
        return (((mean - wanted).square() * torch.exp(-log_variance) + log_variance) / 2).mean()

    return [lost(guard.step(loss).loss) for _ in range(steps)]


def thawed(watched: Watched, steps: int) -> Losses:
    """Layers that are frozen at first and let go one after the other, the last one first: what rested moves again."""
    layers = [nn.Linear(8 if i == 0 else 32, 32) for i in range(4)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())), nn.Linear(32, 4))
    target = nn.Linear(8, 4)
    for layer in layers:
        layer.requires_grad_(False)
    guard = watched(model, torch.optim.Adam(model.parameters(), 3e-3))
    losses = []
    for step in range(steps):
        if step and step % 60 == 0 and step // 60 <= len(layers):
            layers[-(step // 60)].requires_grad_(True)

        def loss() -> Tensor:
            x = torch.randn(64, 8)
            return F.cross_entropy(model(x), target(x).argmax(-1))

        losses.append(lost(guard.step(loss).loss))
    return losses


KINDS: dict[str, tuple[Callable[[Watched, int], Losses], int]] = {
    "weight norm without decay": (free_lengths, 2000),
    "Wasserstein GAN, free critic": (free_critic, 400),
    "REINFORCE, returns that grow": (longer_lives, 150),
    "Q-learning, values that grow": (discounted_values, 2000),
    "curriculum, loss that jumps": (harder_tasks, 400),
    "more and more micro-batches": (more_micro_batches, 400),
    "scale that climbs, 4,000 steps": (scale_that_climbs, 4000),
    "variance that shrinks": (surer_predictions, 1500),
    "layers let go one by one": (thawed, 400),
}
