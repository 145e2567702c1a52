"""What watching costs: a guarded step against a plain one, and the usual helpers beside it, in one run.

    python bench/overhead.py [--steps 2] [--rounds 31] [--model gpt|mlp|cnn]

Every round runs each variant for a few steps, in a random order, and takes its time as a ratio to the plain loop of
the same round; the table shows the medians, and the ratio of all time spent, which holds the steps that sample or copy,
too. Time is the processor's, so that a busy machine disturbs less. Clipping is on everywhere. Host transfers and op
calls are counted per step by looking at every call, not timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stayfinite import Guard

CLIP = 1.0
Step = Callable[[], None]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Job:
    """One model with its data: a fresh copy, from the same seed, for every variant."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        if name == "gpt":
            self.model: nn.Module = nn.Sequential(
                nn.Embedding(512, 192),
                *(Attention(192, 6) for _ in range(6)),
                nn.LayerNorm(192),
                nn.Linear(192, 512),
            )
            ids = torch.randint(0, 512, (8, 65))
            self.loss = lambda: F.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        elif name == "mlp":
            layers = [m for _ in range(100) for m in (nn.Linear(32, 32), nn.ReLU())]
            self.model = nn.Sequential(*layers, nn.Linear(32, 1))
            x = torch.randn(64, 32)
            self.loss = lambda: self.model(x).pow(2).mean()
        else:
            blocks = [
                m
                for i in range(8)
                for m in (nn.Conv2d(3 if i == 0 else 32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
            ]
            self.model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
            x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
            self.loss = lambda: F.cross_entropy(self.model(x), y)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)

    def plain_step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()


def plain(job: Job, folder: Path) -> Step:
    return job.plain_step


def guarded(job: Job, folder: Path) -> Step:
    guard = Guard(job.model, job.optimizer, clip_norm=CLIP, run_dir=folder, quiet=True)
    guard._foresight._schedule.wants = lambda step: False  # type: ignore[method-assign]
    return lambda: guard.step(job.loss) and None


def guarded_with_vitals(job: Job, folder: Path) -> Step:
    """As it is after its first hundred steps: the samples at the start of a run are taken whatever they cost."""
    guard = Guard(job.model, job.optimizer, clip_norm=CLIP, run_dir=folder, quiet=True)
    past_first_samples(guard)
    return lambda: guard.step(job.loss) and None


def past_first_samples(guard: Guard) -> None:
    for _ in range(40):
        guard._foresight._schedule.sampled(0, 0.0)


def guarded_from_the_start(job: Job, folder: Path) -> Step:
    """As it is in its first steps, of which most are sampled."""
    guard = Guard(job.model, job.optimizer, clip_norm=CLIP, run_dir=folder, quiet=True)
    return lambda: guard.step(job.loss) and None


def watched(job: Job, folder: Path) -> Step:
    guard = Guard(job.model, job.optimizer, run_dir=folder, quiet=True)
    past_first_samples(guard)

    def batches() -> Iterator[None]:
        while True:
            yield None

    loop = iter(guard.watch(batches()))

    def step() -> None:
        next(loop)
        job.plain_step()

    return step


def anomaly(job: Job, folder: Path) -> Step:
    def step() -> None:
        with torch.autograd.detect_anomaly(check_nan=True):
            job.plain_step()

    return step


def debug_underflow(job: Job, folder: Path) -> Step:
    from transformers.debug_utils import DebugUnderflowOverflow

    DebugUnderflowOverflow(job.model)
    return job.plain_step


def hand_written(job: Job, folder: Path) -> Step:
    """What people write: isnan and isinf of the loss and of every gradient."""

    def step() -> None:
        job.optimizer.zero_grad()
        loss = job.loss()
        if torch.isnan(loss) or torch.isinf(loss):
            raise RuntimeError("loss")
        loss.backward()
        for parameter in job.model.parameters():
            gradient = parameter.grad
            if gradient is not None and (torch.isnan(gradient).any() or torch.isinf(gradient).any()):
                raise RuntimeError("gradient")
        nn.utils.clip_grad_norm_(job.model.parameters(), CLIP)
        job.optimizer.step()

    return step


VARIANTS: dict[str, Callable[[Job, Path], Step]] = {
    "plain loop": plain,
    "guard.step without vitals": guarded,
    "guard.step": guarded_with_vitals,
    "guard.step, first steps": guarded_from_the_start,
    "guard.watch": watched,
    "hand-written isnan checks": hand_written,
    "torch detect_anomaly": anomaly,
}
if importlib.util.find_spec("transformers"):  # a peer that is compared with where it is installed
    VARIANTS["transformers DebugUnderflowOverflow"] = debug_underflow
BARS = {"gpt": 1.02, "mlp": 1.05, "cnn": 1.02}


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += 1
        return func(*args, **(kwargs or {}))


class _Transfers(TorchFunctionMode):
    NAMES = frozenset({"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu", "numpy"})

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self.NAMES:
            self.count += 1
        return func(*args, **(kwargs or {}))


def count(step: Step, steps: int = 10) -> tuple[float, float]:
    """Host transfers and dispatched ops a step, away from the hundredth steps that copy the state."""
    for _ in range(3):
        step()
    with _Transfers() as transfers, _Calls() as calls:
        for _ in range(steps):
            step()
    return transfers.count / steps, calls.ops / steps


def timed(step: Step, steps: int) -> float:
    start = time.process_time()
    for _ in range(steps):
        step()
    return time.process_time() - start


@contextmanager
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def measure(
    name: str, steps: int, rounds: int, folder: Path
) -> list[tuple[str, float, float, float, float, float]]:
    running = {
        label: make(Job(name), folder / f"{name}-{i}") for i, (label, make) in enumerate(VARIANTS.items())
    }
    ratios: dict[str, list[float]] = {label: [] for label in running}
    for step in running.values():
        timed(step, 3)
    seconds = []
    spent = dict.fromkeys(running, 0.0)
    for _ in track(range(rounds), description=name, console=Console(stderr=True), transient=True):
        order = list(running)
        random.shuffle(order)
        took = {label: timed(running[label], steps) for label in order}
        seconds.append(took["plain loop"] / steps)
        for label in running:
            ratios[label].append(took[label] / took["plain loop"])
            spent[label] += took[label]
    counts = {
        label: count(make(Job(name), folder / f"{name}-count-{i}"))
        for i, (label, make) in enumerate(VARIANTS.items())
    }
    transfers, ops = counts["plain loop"]
    return [
        (
            label,
            statistics.median(ratios[label]),
            spent[label] / spent["plain loop"],
            statistics.median(seconds),
            counts[label][0] - transfers,
            counts[label][1] - ops,
        )
        for label in running
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2, help="steps of each variant a round")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--model", choices=sorted(BARS), action="append", help="only this model (may repeat)")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    random.seed(0)
    table = Table(
        "model",
        "variant",
        "time / plain",
        "bar",
        "of all time",
        "ms a step",
        "extra host transfers a step",
        "extra op calls a step",
    )
    with tempfile.TemporaryDirectory() as folder, quiet():
        for name in arguments.model or BARS:
            for label, ratio, total, seconds, transfers, ops in measure(
                name, arguments.steps, arguments.rounds, Path(folder)
            ):
                bar = f"{BARS[name]:.2f}" if label == "guard.step" else ""
                table.add_row(
                    name,
                    label,
                    f"{ratio:.3f}",
                    bar,
                    f"{total:.3f}",
                    f"{seconds * ratio * 1e3:.2f}",
                    f"{transfers:+.2f}",
                    f"{ops:+.1f}",
                )
            table.add_section()
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
