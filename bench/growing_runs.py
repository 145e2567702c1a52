"""Runs that grow to a failure over 30 steps and more: how early are they foretold, and is it said what grows?

    python bench/growing_runs.py [--seeds 0 1 2] [NAME ...]

Each is a small training under a guard with its default policy, up to its first refused step, or
to where it goes back because what grows is past its limit. `ahead` is the number of
steps from the first forecast to there; `names` is the module or line in which the growth is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stayfinite import Guard

Growing = tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor], tuple[str, ...]]
"""A model, its optimizer, a loss, and what a forecast is to name: parts of modules' or files' names."""


def free_scale_before_a_norm() -> Growing:
    """Adam with an eps of 1e-15: what a norm makes scale-free has ever smaller gradients, and updates as large as ever.
    Eight layers before the norm grow with the eighth power of the time, in float16."""
    layers = [nn.Linear(32, 32, bias=False) for _ in range(8)]
    model = nn.ModuleDict(
        {"deep": nn.Sequential(*layers), "norm": nn.LayerNorm(32), "head": nn.Linear(32, 4)}
    )
    target = nn.Linear(32, 4)

    def loss() -> Tensor:
        x = torch.randn(64, 32)
        with torch.autocast("cpu", torch.float16):
            out = model["head"](model["norm"](model["deep"](x)))
        return F.cross_entropy(out.float(), target(x).argmax(-1))

    return model, torch.optim.Adam(model.parameters(), 3e-2, eps=1e-15), loss, ("deep",)


class Attention(nn.Module):
    """Scores that nothing normalises, of half queries and keys."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return scores.softmax(-1)


def unbounded_scores() -> Growing:
    """Tokens that are to attend to themselves alone: the sharper the better, so that scores grow past 65504."""
    model = nn.ModuleDict({"attend": Attention()})

    def loss() -> Tensor:
        x = torch.randn(8, 24, 64)
        with torch.autocast("cpu", torch.float16):
            weights = model["attend"](x).float()
        queries, keys = model["attend"].query.weight, model["attend"].key.weight
        return -weights.diagonal(dim1=1, dim2=2).mean() - 1e-3 * (queries * keys).sum()

    return model, torch.optim.Adam(model.parameters(), 2e-2), loss, ("growing_runs.py",)


class Residual(nn.Module):
    """A stream that is enlarged by a learnt gain before its branch is added; the branch begins with a norm."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.branch = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gain * x + self.branch(x)
        return out


def residual_gain(dtype: torch.dtype) -> Callable[[], Growing]:
    def make() -> Growing:
        blocks = [Residual() for _ in range(20)]
        model = nn.Sequential(nn.Linear(8, 16), *blocks, nn.LayerNorm(16), nn.Linear(16, 8))
        opt = torch.optim.Adam(
            [
                {"params": [b.gain for b in blocks], "lr": 0.1},
                {"params": [p for n, p in model.named_parameters() if "gain" not in n]},
            ],
            1e-3,
        )
        pull = 1.0

        def loss() -> Tensor:
            x = torch.randn(32, 8)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
                out = model(x)
            larger = sum((block.gain.mean() for block in blocks), torch.zeros(()))
            return F.mse_loss(out.float(), x) - pull * larger

        return model, opt, loss, tuple(str(i) for i in range(1, 21))

    return make


class Pairs(nn.Module):
    """Pairs told apart by their angle, times the exponential of a learnt number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.sharpness = nn.Parameter(torch.zeros(()))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        alike = F.normalize(self.a(left), dim=-1) @ F.normalize(self.b(right), dim=-1).T
        return self.sharpness.exp() * alike


def free_sharpness() -> Growing:
    """A temperature with a rate of its own that is far too high, on pairs that are the same."""
    model = Pairs()
    model.b = model.a
    opt = torch.optim.Adam([{"params": [model.sharpness], "lr": 2.0}, {"params": model.a.parameters()}], 1e-3)

    def loss() -> Tensor:
        x = torch.randn(24, 16)
        return -model(x, x).log_softmax(-1).diagonal().mean() - 0.02 * model.sharpness

    return model, opt, loss, ("growing_runs.py", "Pairs")


def free_embeddings() -> Growing:
    """Two embeddings that are to have a large product and no norm that would bound them: each lengthens the other."""
    model = nn.ModuleDict({"word": nn.Embedding(40, 16), "context": nn.Embedding(40, 16)})
    nn.init.normal_(model["word"].weight, std=0.1)
    model["context"].load_state_dict(model["word"].state_dict())

    def loss() -> Tensor:
        words = torch.randint(40, (256,))
        return -(model["word"](words) * model["context"](words)).sum(-1).mean()

    return model, torch.optim.SGD(model.parameters(), 20.0), loss, ("word", "context")


def resonance() -> Growing:
    """Momentum with a rate just beyond what it bears: the error changes its sign every step, and is a little larger."""
    model, mixing = nn.Sequential(nn.Linear(16, 16, bias=False)), torch.randn(16, 16) / 4

    def loss() -> Tensor:
        x = torch.randn(256, 16)
        return (model(x) - x @ mixing).square().sum(-1).mean()

    return model, torch.optim.SGD(model.parameters(), 1.7, momentum=0.95), loss, ("0", "Sequential")


def two_players(dtype: torch.dtype) -> Callable[[], Growing]:
    """One raises what the other lowers, at the same time: both swing, and each swing is wider."""

    def make() -> Growing:
        model = nn.ModuleDict({"one": nn.Linear(8, 8, bias=False), "other": nn.Linear(8, 8, bias=False)})

        def loss() -> Tensor:
            x = torch.randn(64, 8)
            with torch.autocast("cpu", torch.float16, enabled=dtype is torch.float16):
                one, other = model["one"](x).float(), model["other"](x).float()
            return (one * other.detach()).sum(-1).mean() - (one.detach() * other).sum(-1).mean()

        return (
            model,
            torch.optim.SGD(model.parameters(), 0.5 if dtype is torch.float16 else 1.0),
            loss,
            ("one", "other"),
        )

    return make


def recurrent_radius() -> Growing:
    """A ReLU recurrence that must count over 60 steps and learns to enlarge its state on the way."""
    model = nn.ModuleDict(
        {
            "cell": nn.RNN(4, 32, nonlinearity="relu", batch_first=True),
            "norm": nn.LayerNorm(32),
            "head": nn.Linear(32, 1),
        }
    )
    with torch.no_grad():
        model["cell"].weight_hh_l0.copy_(torch.eye(32))

    def loss() -> Tensor:
        x = torch.rand(16, 60, 4)
        last = model["cell"](x)[0][:, -1]
        return F.mse_loss(
            model["head"](model["norm"](last)), x[..., 0].sum(1, keepdim=True) / 60
        ) - 0.1 * torch.log(last.norm() + 1)

    return model, torch.optim.Adam(model.parameters(), 5e-3), loss, ("cell",)


def louder_inputs() -> Growing:
    """Data whose unit drifts: a recorder that is turned up by 6 % a step, in float16."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 4))
    steps, target = count(), nn.Linear(16, 4)

    def loss() -> Tensor:
        x = torch.randn(32, 16)
        with torch.autocast("cpu", torch.float16):
            out = model(x * 1.06 ** next(steps))
        return F.cross_entropy(out.float(), target(x).argmax(-1))

    return model, torch.optim.Adam(model.parameters(), 1e-3), loss, ("0", "1", "2")


KINDS: dict[str, Callable[[], Growing]] = {
    "Adam, eps 1e-15, before a norm (float16)": free_scale_before_a_norm,
    "attention scores (float16)": unbounded_scores,
    "residual gain (float32)": residual_gain(torch.float32),
    "residual gain (bfloat16)": residual_gain(torch.bfloat16),
    "learnt temperature (float32)": free_sharpness,
    "embeddings (float32)": free_embeddings,
    "momentum (float32)": resonance,
    "two players (float16)": two_players(torch.float16),
    "two players (float32)": two_players(torch.float32),
    "recurrence (float32)": recurrent_radius,
    "inputs (float16)": louder_inputs,
}


def run(name: str, seed: int, folder: Path, most: int = 400) -> dict[str, Any]:
    """Train one up to its first refused step; when that was, and what had been foretold."""
    torch.manual_seed(seed)
    model, optimizer, loss, expected = KINDS[name]()
    guard = Guard(model, optimizer, run_dir=folder, quiet=True, prove="off")
    for _ in range(most):
        if guard.step(loss).action != "none" or guard.counters.rollbacks:
            break
    guard.close()
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    told = [line for line in lines if line.get("event") == "forecast"]
    ends = [
        line
        for line in lines
        if line.get("action") in ("skip", "rollback", "stop") or line.get("event") == "rollback"
    ]
    fails = min((line["step"] for line in ends), default=None)
    return {"fails": fails, "forecasts": told, "expected": expected}


def main(arguments: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    missed = 0
    print(f"{'run':42} {'seed':>4} {'fails':>5} {'forecast':>8} {'ahead':>5}  names")
    for name in arguments.names or KINDS:
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as folder:
                seen = run(name, seed, Path(folder))
            told = seen["forecasts"][0] if seen["forecasts"] else None
            what = told["what"].rpartition(" of ")[2] if told else ""
            right = told is not None and any(
                part in what.split(".") or part in what for part in seen["expected"]
            )
            ahead = seen["fails"] - told["step"] if told and seen["fails"] is not None else None
            good = right and ahead is not None and ahead >= 8
            missed += not good
            figures = [
                str(v) if v is not None else "-" for v in (seen["fails"], told and told["step"], ahead)
            ]
            print(
                f"{name:42} {seed:4} {figures[0]:>5} {figures[1]:>8} {figures[2]:>5}  {what}"
                + ("" if good else "   MISSED"),
                flush=True,
            )
    print(f"{missed} were not foretold 8 steps before, or by another name")
    return 1 if missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    sys.exit(main(parser.parse_args()))
