"""Twelve models, each failing in its own way at one sample; every framework trains the same ones.

A model takes a batch and gives its loss. The line where the bad value is born ends in `# born: NAME`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FEATURES, SAMPLES, BAD = 6, 48, 22


class Model(nn.Module):
    """A linear layer, and a loss that sees which samples are odd: their last feature is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES - 1, 4)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self.body(x[:, :-1]), x[:, -1], labels)}

    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out, labels)


class NanBatch(Model):
    """The data itself are bad: sample BAD holds a NaN."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.body(x[:, :-1])
        return {"loss": nn.functional.cross_entropy(out, labels)}


class LogZero(Model):
    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        p = torch.sigmoid(out).mean(1) * (1 - odd)
        return -torch.log(p).mean()  # born: log_zero


class HalfOverflow(Model):
    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        wide = (out * (1 + 1000 * odd[:, None])).half()
        energy = wide * wide  # born: half_overflow
        return energy.float().mean()


class IgnoredLabels(Model):
    """Every label of the batch with the odd sample is ignored: a mean of nothing."""

    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        labels = torch.where(odd.any(), torch.full_like(labels, -100), labels)
        return nn.functional.cross_entropy(out, labels)  # born: ignored_labels


class ExpOverflow(Model):
    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        energy = out.abs() * (1 + 1e4 * odd[:, None])
        return energy.exp().mean()  # born: exp_overflow


class ZeroByZero(Model):
    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        weight = out.abs() * (1 - odd)[:, None]
        share = weight / weight.sum(1, keepdim=True)  # born: zero_by_zero
        return (share**2).mean()


class SqrtAtZero(Model):
    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        difference = out * (1 - odd)[:, None]
        return (difference**2).sum(1).sqrt().mean()  # born: sqrt_at_zero


class UnsafeWhere(Model):
    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        size = out.abs().sum(1) * (1 - odd)
        ratio = torch.where(size > 0, out[:, 0] / size, 0.0)  # born: unsafe_where
        return ratio.mean()


class MaskedRow(Model):
    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        scores = out.masked_fill(odd.bool()[:, None], float("-inf"))
        attention = torch.softmax(scores, dim=1)  # born: masked_row
        return (attention * out).sum(1).mean()


class OneSampleStd(Model):
    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        kept = out[:1] if bool(odd.any()) else out
        return (out.mean(1) / (kept.std(0).mean() + 1e-3)).square().mean()  # born: one_sample_std


class AbsurdRate(Model):
    """Nothing is wrong with the model: the learning rate is."""

    def loss(self, out: Tensor, odd: Tensor, labels: Tensor) -> Tensor:
        return (out - labels[:, None]).square().mean()  # born: absurd_rate


class PoisonedStart(Model):
    """Weights from a checkpoint that was written too late."""

    def __init__(self) -> None:
        super().__init__()
        good = self.state_dict()
        good["body.weight"][1, 2] = float("nan")  # born: poisoned_file
        self.load_state_dict(good)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.body(x[:, :-1])  # born: poisoned_start
        return {"loss": nn.functional.cross_entropy(out, labels)}


FAILING: dict[str, type[Model]] = {
    "nan_batch": NanBatch,
    "log_zero": LogZero,
    "half_overflow": HalfOverflow,
    "ignored_labels": IgnoredLabels,
    "exp_overflow": ExpOverflow,
    "zero_by_zero": ZeroByZero,
    "sqrt_at_zero": SqrtAtZero,
    "unsafe_where": UnsafeWhere,
    "masked_row": MaskedRow,
    "one_sample_std": OneSampleStd,
    "absurd_rate": AbsurdRate,
    "poisoned_start": PoisonedStart,
}


def line_of(name: str) -> int:
    """The line that a report must name."""
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# born: {name}"))


def learning_rate(name: str) -> float:
    return 1e25 if name == "absurd_rate" else 1e-3


def model(name: str) -> Model:
    """The model of this case; "healthy" never fails."""
    torch.manual_seed(0)
    return FAILING.get(name, Model)()


class Samples(torch.utils.data.Dataset[dict[str, Any]]):
    """Random samples; one of them is odd, and in the case of bad data holds a NaN."""

    def __init__(self, name: str, samples: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(samples, FEATURES, generator=generator)
        self.x[:, -1] = 0
        self.labels = torch.randint(0, 4, (samples,), generator=generator)
        if name in FAILING:
            self.x[BAD, -1] = 1
        if name == "nan_batch":
            self.x[BAD, 1] = float("nan")  # born: nan_batch

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "labels": self.labels[index]}
