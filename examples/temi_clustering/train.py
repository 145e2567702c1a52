"""Trains the cluster heads: python train.py [--config FILE] [--steps N] [--seed S] [--out DIR] ..."""

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

import torch
import yaml
from data import Batch, PairLoader, load_embeddings, nearest_neighbours
from loss import LogSpaceTemiLoss, Settings, TemiLoss
from metrics import accuracy, nmi
from model import Teacher, build_student
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent


@dataclass
class Parts:
    """Everything one training run consists of."""

    config: dict[str, Any]
    model: nn.Module
    ema: Teacher
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: None  # the whole run is float32
    loader: PairLoader
    evaluate: Callable[[], dict[str, float]]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "step": self.loader.step,
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.loader.step = state["step"]
        for name in ("model", "ema", "loss", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(state[name])


def read_config(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    return config


def build(config: dict[str, Any]) -> Parts:
    torch.manual_seed(config.get("seed", 0))
    data, heads, loss, optim = config["data"], config["model"], config["loss"], config["optim"]
    stable = config.get("stable", False)

    cache = Path(config.get("cache_dir", HERE / "runs" / "cache"))
    embeddings, labels = load_embeddings(data, cache, config.get("force_recompute", False))
    neighbours = nearest_neighbours(embeddings, config["neighbours"])
    loader = PairLoader(embeddings, neighbours, optim["batch"], config.get("seed", 0))

    model = build_student(
        embeddings.shape[1], heads["clusters"], heads["heads"], heads["init_std"], normalised=stable
    )
    settings = Settings(
        heads["heads"],
        heads["clusters"],
        loss["beta"],
        loss["student_temperature"],
        tuple(loss["teacher_temperature"]),
        loss["temperature_epochs"],
        loss["marginal_momentum"],
    )
    criterion = LogSpaceTemiLoss(settings) if stable else TemiLoss(settings)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config["accelerated"]["lr"], weight_decay=optim["weight_decay"]
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step // loader.steps_per_epoch / optim["warmup_epochs"])
    )

    def evaluate() -> dict[str, float]:
        return clustering_quality(model, loss["student_temperature"], embeddings, labels)

    ema = Teacher(model, heads["ema"])
    return Parts(config, model, ema, criterion, optimizer, scheduler, None, loader, evaluate)


@torch.no_grad()
def clustering_quality(
    model: nn.Module, temperature: float, embeddings: Tensor, labels: Tensor
) -> dict[str, float]:
    """NMI and accuracy of the head that tells most about its input (chosen without labels)."""
    probabilities = torch.softmax(model(embeddings) / temperature, dim=-1)
    marginal_entropy = torch.special.entr(probabilities.mean(dim=1)).sum(dim=-1)
    information = marginal_entropy - torch.special.entr(probabilities).sum(dim=-1).mean(dim=-1)
    clusters = probabilities[information.argmax()].argmax(dim=-1)
    return {"nmi": nmi(clusters, labels), "accuracy": accuracy(clusters, labels)}


def loss_components(parts: Parts, batch: Batch) -> dict[str, Tensor]:
    """One loss per head; the training loss is their sum."""
    student = parts.model(batch["x"])
    teacher = parts.ema(batch["neighbour"])
    losses = parts.loss(student, teacher, int(batch["epoch"]))
    return {f"head_{index:02d}": value for index, value in enumerate(losses)}


def train_step(parts: Parts, batch: Batch) -> dict[str, float]:
    """One update, as the original makes it; returns what is logged."""
    lr = float(parts.scheduler.get_last_lr()[0])
    parts.optimizer.zero_grad()
    components = loss_components(parts, batch)
    loss = torch.stack(list(components.values())).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(parts.model.parameters(), parts.config["optim"]["clip"])
    parts.optimizer.step()
    parts.scheduler.step()
    parts.ema.update(parts.model)
    return {"loss": loss.item(), "grad_norm": norm.item(), "lr": lr}


def json_line(record: dict[str, Any]) -> str:
    """One line of valid JSON: NaN and Inf become strings."""
    finite = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(finite, allow_nan=False)


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=HERE / "config.yaml")
    parser.add_argument(
        "--steps", type=int, help="train up to this step (default: train.steps of the config)"
    )
    parser.add_argument("--seed", type=int, help="default: seed of the config")
    parser.add_argument("--out", type=Path, help="default: runs/<config> beside this file")
    parser.add_argument("--resume", type=Path, metavar="CKPT", help="continue from this checkpoint")
    parser.add_argument("--force-recompute", action="store_true", help="do not read cached embeddings")
    parser.add_argument("--stop-on-nan", action="store_true", help="end at the first non-finite loss")
    options = parser.parse_args(argv)

    config = read_config(options.config)
    config["force_recompute"] = options.force_recompute
    if options.seed is not None:
        config["seed"] = options.seed
    steps = options.steps if options.steps is not None else config["train"]["steps"]
    every = config["train"]["evaluate_every"]
    out = options.out or HERE / "runs" / options.config.stem
    out.mkdir(parents=True, exist_ok=True)

    parts = build(config)
    if options.resume:
        parts.load(torch.load(options.resume, weights_only=True))
    started = time.perf_counter()
    with (out / "log.jsonl").open("a" if options.resume else "w") as log:
        metrics = parts.evaluate()
        print(json_line({"step": parts.loader.step, **metrics}), file=log)
        print(f"step {parts.loader.step}: nmi {metrics['nmi']:.3f} accuracy {metrics['accuracy']:.3f}")
        batches = iter(parts.loader)
        while parts.loader.step < steps:
            record: dict[str, Any] = train_step(parts, next(batches))
            step = parts.loader.step
            if step % every == 0 or step == steps:
                metrics = parts.evaluate()
                record |= metrics
                torch.save(parts.state(), out / f"step_{step:06d}.pt")
            print(json_line({"step": step, **record}), file=log)
            print(
                f"\rstep {step}/{steps} loss {record['loss']:.4f} norm {record['grad_norm']:.3g}"
                f" lr {record['lr']:.2e} nmi {metrics['nmi']:.3f} accuracy {metrics['accuracy']:.3f}",
                end="",
            )
            if options.stop_on_nan and not math.isfinite(record["loss"]):
                break
    metrics = {**parts.evaluate(), "steps": parts.loader.step, "seconds": time.perf_counter() - started}
    print(f"\n{json_line(metrics)}")
    return metrics


if __name__ == "__main__":
    main(sys.argv[1:])
