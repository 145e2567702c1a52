"""Trains the plate reader: python train.py [--config FILE] [--steps N] [--seed S] [--out DIR] [--resume CKPT]."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from data import PlateLoader, Plates, build_plates
from loss import PlateLoss, character_accuracy
from model import PlateReader
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
HELD_OUT_SEED = 10_000


@dataclass
class Parts:
    """Everything one training run consists of."""

    config: dict[str, Any]
    model: nn.Module
    ema: None  # this system keeps no average of its weights
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.OneCycleLR
    scaler: torch.amp.GradScaler
    loader: PlateLoader
    evaluate: Callable[[], dict[str, float]]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        saved = {
            name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler", "scaler")
        }
        return {"step": self.loader.step, **saved}

    def load(self, state: dict[str, Any]) -> None:
        self.loader.step = state["step"]
        for name in ("model", "optimizer", "scheduler", "scaler"):
            getattr(self, name).load_state_dict(state[name])


def read_config(path: Path) -> dict[str, Any]:
    """The reported values; those in the section `accelerated` take their place."""
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    config |= config.pop("accelerated")
    return config


def build(config: dict[str, Any]) -> Parts:
    torch.manual_seed(config["seed"])
    model: nn.Module = PlateReader(config)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], total_steps=config["steps"] + 1)
    scaler = torch.amp.GradScaler("cpu", enabled=config["precision"] == "float16")
    loader = PlateLoader(build_plates(config, config["augmentation"]), config["batch_size"], config["seed"])
    held_out = build_plates(config, "strong").draw(
        np.random.default_rng(HELD_OUT_SEED), config["eval_plates"]
    )

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        model.eval()
        accuracy = character_accuracy(model(held_out.frames), held_out.targets)
        model.train()
        return {"character_accuracy": accuracy}

    return Parts(config, model, None, PlateLoss(), optimizer, scheduler, scaler, loader, evaluate)


def loss_components(parts: Parts, batch: Plates) -> dict[str, Tensor]:
    half = parts.config["precision"] == "float16"
    with torch.autocast("cpu", dtype=torch.float16, enabled=half):
        logits = parts.model(batch.frames)
    components: dict[str, Tensor] = parts.loss(logits, batch.targets)
    return components


def train_step(parts: Parts, batch: Plates) -> dict[str, float]:
    """One update, as the original makes it; returns what is logged."""
    lr = float(parts.scheduler.get_last_lr()[0])
    parts.optimizer.zero_grad()
    components = loss_components(parts, batch)
    loss = torch.stack(list(components.values())).sum()
    parts.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    parts.scaler.unscale_(parts.optimizer)
    norm = nn.utils.clip_grad_norm_(parts.model.parameters(), parts.config["clip_norm"])
    parts.scaler.step(parts.optimizer)
    parts.scaler.update()
    if parts.scheduler.last_epoch + 1 < parts.scheduler.total_steps:  # after its end the rate stays
        parts.scheduler.step()
    return {"loss": loss.item(), "grad_norm": norm.item(), "lr": lr, "scale": parts.scaler.get_scale()}


def json_line(record: dict[str, Any]) -> str:
    """One line of valid JSON: NaN and Inf become strings."""
    finite = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(finite, allow_nan=False)


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=HERE / "config.yaml")
    parser.add_argument("--steps", type=int, help="train up to this step (default: steps of the config)")
    parser.add_argument("--seed", type=int, help="default: seed of the config")
    parser.add_argument("--out", type=Path, help="default: runs/<config> beside this file")
    parser.add_argument("--resume", type=Path, metavar="CKPT", help="continue from this checkpoint")
    parser.add_argument("--stop-on-nan", action="store_true", help="end at the first non-finite loss")
    options = parser.parse_args(argv)

    config = read_config(options.config)
    if options.seed is not None:
        config["seed"] = options.seed
    steps = options.steps if options.steps is not None else config["steps"]
    out = options.out or HERE / "runs" / options.config.stem
    out.mkdir(parents=True, exist_ok=True)

    parts = build(config)
    if options.resume:
        parts.load(torch.load(options.resume, weights_only=True))
    started = time.perf_counter()
    with (out / "log.jsonl").open("a" if options.resume else "w") as log:
        metrics = parts.evaluate()
        print(json_line({"step": parts.loader.step, **metrics}), file=log)
        print(f"step {parts.loader.step}: character accuracy {metrics['character_accuracy']:.3f}")
        batches = iter(parts.loader)
        while parts.loader.step < steps:
            record: dict[str, Any] = train_step(parts, next(batches))
            step = parts.loader.step
            if step % config["evaluate_every"] == 0 or step == steps:
                metrics = parts.evaluate()
                record |= metrics
                torch.save(parts.state(), out / f"step_{step:06d}.pt")
            print(json_line({"step": step, **record}), file=log)
            print(
                f"\rstep {step}/{steps} loss {record['loss']:.3f} norm {record['grad_norm']:.3g}"
                f" lr {record['lr']:.2e} scale {record['scale']:g} accuracy {metrics['character_accuracy']:.3f}",
                end="",
            )
            if options.stop_on_nan and not math.isfinite(record["loss"]):
                break
    metrics = {**parts.evaluate(), "steps": parts.loader.step, "seconds": time.perf_counter() - started}
    print(f"\n{json_line(metrics)}")
    return metrics


if __name__ == "__main__":
    main(sys.argv[1:])
