"""What following a step costs: peak memory and time of a traced training step against a plain one.

Usage: python bench/replay.py [--steps N] [--json FILE]

Each figure comes from a fresh process. Memory is the growth of its peak resident size from before the first step
to after the last (weights, activations, gradients, moments); time is the quickest step. Bars: 1.5x memory, 10x time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

MEMORY_BAR, TIME_BAR = 1.5, 10.0
MIB = 2**20


def small_gpt() -> Callable[[], object]:
    import torch
    from torch import nn

    width, length, words, batch = 256, 128, 1000, 16
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
    body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    embed, head = nn.Embedding(words, width), nn.Linear(width, words)
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    tokens = torch.randint(0, words, (batch, length))

    def loss() -> torch.Tensor:
        out = head(body(embed(tokens), mask=mask, is_causal=True))
        return nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return _step(nn.ModuleList([embed, body, head]), loss)


def cnn() -> Callable[[], object]:
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for before in (3, 32, 32, 32):
        layers += [nn.Conv2d(before, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    images, labels = torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))
    return _step(model, lambda: nn.functional.cross_entropy(model(images), labels))


def mlp() -> Callable[[], object]:
    import torch
    from torch import nn

    layers = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    model = nn.Sequential(*layers)
    x = torch.randn(1024, 1024)
    return _step(model, lambda: nn.functional.mse_loss(model(x), x))


MODELS = {"small GPT": small_gpt, "CNN": cnn, "MLP": mlp}


def _step(model: object, loss: Callable[[], object]) -> Callable[[], object]:
    import torch

    assert isinstance(model, torch.nn.Module)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        value = loss()
        torch.autograd.backward(value)  # type: ignore[arg-type]
        optimizer.step()

    return step


def peak() -> int:
    """The largest resident size of this process so far, in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def measure(name: str, steps: int, *, traced: bool) -> dict[str, float]:
    """In this process: train a few steps."""
    import torch

    from stayfinite.replay import Tracer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = MODELS[name]()
    torch.randn(256, 256) @ torch.randn(256, 256)  # the library's own buffers are nobody's activations
    before, seconds = peak(), float("inf")
    with Tracer() if traced else nullcontext():
        for _ in range(steps):
            started = time.perf_counter()
            step()
            seconds = min(seconds, time.perf_counter() - started)
    return {"bytes": float(peak() - before), "seconds": seconds}


def in_fresh_process(name: str, steps: int, *, traced: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, "--steps", str(steps)]
    done = subprocess.run(command + ["--traced"] * traced, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one, asked.steps, traced=asked.traced)))
        return
    figures = {}
    print(
        f"{'':12}{'plain MiB':>12}{'traced MiB':>12}{'memory':>9}{'plain ms':>11}{'traced ms':>11}{'time':>8}"
    )
    for name in MODELS:
        plain = in_fresh_process(name, asked.steps, traced=False)
        traced = in_fresh_process(name, asked.steps, traced=True)
        memory, slower = traced["bytes"] / plain["bytes"], traced["seconds"] / plain["seconds"]
        missed = "  bar missed" if memory > MEMORY_BAR or slower > TIME_BAR else ""
        figures[name] = {"plain": plain, "traced": traced, "memory": memory, "time": slower}
        print(
            f"{name:12}{plain['bytes'] / MIB:12.0f}{traced['bytes'] / MIB:12.0f}{memory:8.2f}x"
            f"{plain['seconds'] * 1e3:11.1f}{traced['seconds'] * 1e3:11.1f}{slower:7.2f}x{missed}"
        )
    if asked.json is not None:
        asked.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
