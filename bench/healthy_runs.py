"""Sixty healthy trainings of different kinds: no forecast, no refused step, no finding.

    python bench/healthy_runs.py [NAME ...]

Each is a few hundred steps of a real loss on made data, under a guard with its default policy.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, CyclicLR, LambdaLR, LRScheduler

from stayfinite import Guard

sys.path.insert(0, str(Path(__file__).resolve().parent))
import healthy_changes as changes
import healthy_learning as learning
import healthy_limits as limits
import healthy_schedules as schedules

Loss = Callable[[], Tensor]
Made = tuple[nn.Module, Loss]


class Transformer(nn.Module):
    def __init__(self, vocabulary: int = 32, width: int = 48, layers: int = 3) -> None:
        super().__init__()
        self.embed, self.position = (
            nn.Embedding(vocabulary, width),
            nn.Parameter(torch.randn(24, width) * 0.02),
        )
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        out: Tensor = self.head(
            self.layers(self.embed(ids) + self.position[: ids.shape[1]], mask, is_causal=True)
        )
        return out


def sequence() -> Tensor:
    """Counting with a step that is drawn for each row."""
    start, by = torch.randint(0, 32, (8, 1)), torch.randint(1, 4, (8, 1))
    return (start + by * torch.arange(17)) % 32


def language(model: nn.Module) -> Tensor:
    ids = sequence()
    return F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())


def gpt() -> Made:
    model = Transformer()
    return model, lambda: language(model)


def gpt_bfloat16() -> Made:
    model = Transformer()

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return language(model)

    return model, loss


def gpt_float16() -> Made:
    model = Transformer(layers=2)

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return language(model)

    return model, loss


def images(count: int = 16) -> tuple[Tensor, Tensor]:
    labels = torch.randint(0, 4, (count,))
    pictures = 0.3 * torch.randn(count, 1, 12, 12)
    for index, label in enumerate(labels.tolist()):
        pictures[
            index, 0, 3 * (label // 2) : 3 * (label // 2) + 4, 6 * (label % 2) : 6 * (label % 2) + 4
        ] += 1
    return pictures, labels


def cnn() -> Made:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 16, 4),
    )  # fmt: skip

    def loss() -> Tensor:
        pictures, labels = images()
        return F.cross_entropy(model(pictures), labels)

    return model, loss


def cnn_float16() -> Made:
    model, inner = cnn()

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return inner()

    return model, loss


def mlp_deep() -> Made:
    blocks = [nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(20)]
    model = nn.Sequential(nn.Linear(8, 32), *blocks, nn.Linear(32, 1))
    target = nn.Linear(8, 1)

    def loss() -> Tensor:
        x = torch.randn(32, 8)
        return F.mse_loss(model(x), target(x).detach())

    return model, loss


def vae() -> Made:
    model = nn.ModuleDict({"encoder": nn.Linear(144, 16), "decoder": nn.Linear(8, 144)})

    def loss() -> Tensor:
        x = images()[0].flatten(1)
        mean, logvar = model["encoder"](x).chunk(2, -1)
        z = mean + (0.5 * logvar).exp() * torch.randn_like(mean)
        kl = 0.5 * (mean.pow(2) + logvar.exp() - 1 - logvar).sum(-1).mean()
        return F.mse_loss(model["decoder"](z), x) * 144 + kl

    return model, loss


def contrastive() -> Made:
    class Clip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(12, 8)
            self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            a, b = F.normalize(self.a(left), dim=-1), F.normalize(self.b(right), dim=-1)
            return self.scale.clamp(max=4.6).exp() * a @ b.T

    model, mixing = Clip(), torch.randn(16, 12)

    def loss() -> Tensor:
        left = torch.randn(24, 16)
        logits = model(left, left @ mixing)
        labels = torch.arange(24)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    return model, loss


def diffusion() -> Made:
    model = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8))

    def loss() -> Tensor:
        x = torch.randn(64, 8).sign() + 0.1 * torch.randn(64, 8)
        time, noise = torch.rand(64, 1), torch.randn(64, 8)
        noisy = (1 - time) * x + time * noise
        return F.mse_loss(model(torch.cat([noisy, time], -1)), noise - x)

    return model, loss


def lora() -> Made:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(16, 16).requires_grad_(False)
            self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.base(x) + 2.0 * self.up(self.down(x))
            return out

    model, target = Adapted(), torch.randn(16, 16) * 0.1

    def loss() -> Tensor:
        x = torch.randn(32, 16)
        return F.mse_loss(model(x), model.base(x) + x @ target)

    return model, loss


def recurrent(kind: type[nn.Module]) -> Callable[[], Made]:
    def make() -> Made:
        model = nn.ModuleDict({"cell": kind(4, 24, batch_first=True), "head": nn.Linear(24, 1)})

        def loss() -> Tensor:
            x = torch.randn(16, 20, 4)
            return F.mse_loss(model["head"](model["cell"](x)[0][:, -1]), x[:, -3:, 0].sum(1, keepdim=True))

        return model, loss

    return make


def policy_gradient() -> Made:
    """PPO's clipped loss on a bandit with a context."""
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))

    def loss() -> Tensor:
        state = torch.randn(64, 4)
        policy = torch.distributions.Categorical(logits=model(state))
        action = policy.sample()
        reward = (action == state[:, :3].argmax(-1)).float()
        old = policy.log_prob(action).detach() + 0.1 * torch.randn(64)
        ratio, advantage = (policy.log_prob(action) - old).exp(), reward - reward.mean()
        clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return -clipped.mean() - 0.01 * policy.entropy().mean()

    return model, loss


def gan() -> Made:
    """Both losses in one, the discriminator's through detached samples."""
    maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    model = nn.ModuleDict({"maker": maker, "judge": judge})

    def loss() -> Tensor:
        real, made = torch.randn(32, 2) * 0.5 + 1, maker(torch.randn(32, 4))
        judged = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
        for parameter in judge.parameters():
            parameter.requires_grad_(False)
        fooled = F.softplus(-judge(made)).mean()
        for parameter in judge.parameters():
            parameter.requires_grad_(True)
        return judged + fooled

    return model, loss


def attention_pooling() -> Made:
    model = nn.ModuleDict(
        {"attend": nn.MultiheadAttention(16, 4, batch_first=True), "head": nn.Linear(16, 1)}
    )

    def loss() -> Tensor:
        x = torch.randn(16, 10, 16)
        pooled = model["attend"](x, x, x)[0].mean(1)
        return F.mse_loss(model["head"](pooled), x[:, :, 0].mean(1, keepdim=True))

    return model, loss


def growing_from_zero() -> Made:
    """Residual branches that begin at 0, as in ReZero and adaLN-Zero: their gains rise, then stay."""

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.gate = nn.Linear(16, 16), nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.gate * torch.tanh(self.inner(x))

    model = nn.Sequential(nn.Linear(8, 16), *(Branch() for _ in range(8)), nn.Linear(16, 8))

    def loss() -> Tensor:
        x = torch.randn(32, 8)
        with torch.autocast("cpu", torch.float16):
            return F.mse_loss(model(x).float(), 20 * x.sin())

    return model, loss


def large_targets() -> Made:
    """Outputs that must become large, and do: growth that ends."""
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))

    def loss() -> Tensor:
        x = torch.randn(32, 4)
        return F.smooth_l1_loss(model(x), 300 * x[:, :1])

    return model, loss


KINDS: dict[str, tuple[Callable[[], Made], int, float, str]] = {
    "GPT, warm-up, 1,000 steps": (gpt, 1000, 1e-3, "warm-up"),
    "GPT bfloat16 autocast": (gpt_bfloat16, 200, 1e-3, "warm-up"),
    "GPT float16 with scaler": (gpt_float16, 200, 1e-3, "scaler"),
    "GPT without warm-up": (gpt, 200, 1e-3, ""),
    "CNN with batch norm": (cnn, 300, 1e-3, ""),
    "CNN float16 with scaler": (cnn_float16, 200, 1e-3, "scaler"),
    "CNN, SGD with momentum": (cnn, 300, 5e-2, "sgd"),
    "MLP, 20 layers": (mlp_deep, 300, 1e-3, ""),
    "VAE": (vae, 300, 1e-3, ""),
    "contrastive, learnt temperature": (contrastive, 300, 1e-3, ""),
    "diffusion (flow matching)": (diffusion, 400, 1e-3, ""),
    "LoRA": (lora, 300, 1e-2, ""),
    "RNN": (recurrent(nn.RNN), 300, 1e-3, ""),
    "LSTM": (recurrent(nn.LSTM), 300, 3e-3, ""),
    "GRU": (recurrent(nn.GRU), 300, 3e-3, ""),
    "PPO": (policy_gradient, 400, 3e-3, ""),
    "GAN": (gan, 400, 2e-4, ""),
    "attention pooling": (attention_pooling, 300, 1e-3, ""),
    "gates that grow from 0, float16": (growing_from_zero, 300, 3e-3, "scaler"),
    "outputs that must become large": (large_targets, 500, 1e-1, ""),
    "GPT, cosine with warm restarts": (gpt, 300, 2e-3, "restarts"),
    "inputs that grow 100 times, float16": (changes.larger_inputs, 400, 3e-3, "scaler"),
    "Adam without decay, 3,000 steps": (changes.growing_weights, 3000, 1e-2, "no decay"),
    "temperature without a bound, float16": (changes.free_temperature, 500, 1e-2, "scaler"),
    "RNN, sequences that grow": (changes.longer_sequences, 400, 1e-3, ""),
    "batches that grow, summed loss": (changes.larger_batches, 400, 1e-3, ""),
    "pictures that grow, float16": (changes.larger_pictures, 400, 1e-3, "scaler"),
    "scaler that doubles every 10 steps": (changes.busy_scaler, 600, 1e-3, "busy scaler"),
    "CNN, cyclic learning rate": (cnn, 600, 1e-1, "cyclic"),
    **limits.KINDS,
}


LOOPS = {**learning.KINDS, **schedules.KINDS}


def _losses(name: str, folder: Path, steps: int | None) -> tuple[list[float], Guard]:
    """Train one of the kinds above under a guard."""
    make, usual, rate, extra = KINDS[name]
    model, loss = make()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(trained, rate, momentum=0.9)
        if extra in ("sgd", "cyclic")
        else torch.optim.AdamW(trained, rate)
    )
    if extra == "no decay":
        optimizer = torch.optim.Adam(trained, rate)
    schedule: LRScheduler | None = None
    if extra == "warm-up":
        schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    elif extra == "restarts":
        schedule = CosineAnnealingWarmRestarts(optimizer, 50)
    elif extra == "cyclic":
        schedule = CyclicLR(optimizer, rate / 100, rate, step_size_up=50)
    scaler = torch.amp.GradScaler("cpu") if extra == "scaler" else None
    if extra == "busy scaler":
        scaler = torch.amp.GradScaler("cpu", growth_interval=10)
    guard = Guard(model, optimizer, schedule, scaler, clip_norm=1.0, run_dir=folder, quiet=True)
    return [guard.step(loss).loss or math.nan for _ in range(steps or usual)], guard


def _learnt(name: str, folder: Path, steps: int | None) -> tuple[list[float], Guard]:
    """Those that have loops of their own."""
    train, usual = LOOPS[name]
    guards: list[Guard] = []

    def watched(*parts: Any, **options: Any) -> Guard:
        guards.append(Guard(*parts, run_dir=folder, quiet=True, **options))
        return guards[0]

    return train(watched, steps or usual), guards[0]


def run(name: str, folder: Path, steps: int | None = None) -> dict[str, float | int | list[str]]:
    """Train one; what the guard said about it."""
    torch.manual_seed(0)
    losses, guard = (_losses if name in KINDS else _learnt)(name, folder, steps)
    guard.close()
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    return {
        "steps": len(losses),
        "first": losses[0],
        "last": sum(losses[-10:]) / 10,
        "refused": guard.counters.skipped,
        "forecasts": sum(line.get("event") == "forecast" for line in lines),
        "findings": [line["finding"]["code"] for line in lines if line.get("event") == "finding"],
        "vitals": sum(line.get("event") == "vitals" for line in lines),
    }


def main(chosen: list[str]) -> int:
    torch.set_num_threads(1)
    alarms = 0
    print(
        f"{'training':34} {'steps':>5} {'loss':>16} {'refused':>7} {'forecasts':>9} {'vitals':>6}  findings"
    )
    names = chosen or [*KINDS, *LOOPS]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            seen = run(name, Path(folder))
        alarms += bool(seen["refused"] or seen["forecasts"] or seen["findings"])
        way = f"{seen['first']:.3g} -> {seen['last']:.3g}"
        said = ", ".join(map(str, seen["findings"])) if isinstance(seen["findings"], list) else ""
        counts = f"{seen['refused']:7} {seen['forecasts']:9} {seen['vitals']:6}"
        print(f"{name:34} {seen['steps']:5} {way:>16} {counts}  {said}", flush=True)
    print(f"{alarms} of {len(names)} healthy runs had an alarm")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
