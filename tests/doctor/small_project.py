"""A small real project: a configuration, a script that trains (and fails when its rate is too high), its runs."""

from __future__ import annotations

import sys
from pathlib import Path

import preloaded

CONFIG = """\
# a line that is fitted
lr: {lr}
warmup_steps: 5
clip_norm: 1.0
steps: {steps}
save_every: 4
skip_bad: {skip}
seed: 0
"""
TRAIN = '''\
"""Fits a line: python train.py --config FILE [--resume CKPT]."""
import argparse
import json
import math
from pathlib import Path

import torch
import yaml


def build(config):
    torch.manual_seed(config["seed"])
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    warmup = config["warmup_steps"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    return model, optimizer, scheduler


def loss_of(model):
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    return ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, default=Path("config.yaml"))
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    config = yaml.safe_load(options.config.read_text())
    model, optimizer, scheduler = build(config)
    start = 0
    if options.resume:
        state = torch.load(options.resume, weights_only=True)
        start = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
    out = Path("runs") / options.config.stem
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.jsonl").open("a") as log:
        for step in range(start + 1, config["steps"] + 1):
            rate = scheduler.get_last_lr()[0]
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
            if math.isfinite(loss.item()) or not config["skip_bad"]:
                if not config["skip_bad"] or config["lr"] < 1:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), config["clip_norm"] * 1e30)
                optimizer.step()
            scheduler.step()
            values = {"loss": loss.item(), "grad_norm": norm.item(), "lr": rate}
            shown = {k: v if math.isfinite(v) else str(v) for k, v in values.items()}
            print(json.dumps({"step": step, **shown}), file=log)
            if step % config["save_every"] == 0:
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "scheduler": scheduler.state_dict()}, out / f"step_{step:04d}.pt")


if __name__ == "__main__":
    main()
'''
PROBE = """\
import torch
from train import build, loss_of


def values(path):
    model, _, _ = build({"seed": 0, "lr": 0.1, "warmup_steps": 1})
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return {"loss": loss_of(model)}
"""


def make_project(folder: Path, *, lr: str = "0.02", steps: int = 40, skip: str = "false") -> Path:
    """The project before its first run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG.format(lr=lr, steps=steps, skip=skip))
    (folder / "train.py").write_text(TRAIN)
    return folder


def train(folder: Path, *arguments: str) -> None:
    """Run its script as people do."""
    preloaded.run([sys.executable, "train.py", *arguments], cwd=folder, check=True, timeout=120)
