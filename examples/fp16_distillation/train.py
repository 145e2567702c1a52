"""Distils the teacher into the student: python train.py [--config FILE] [--steps N] [--seed S] [--out DIR] ..."""

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
import torch.nn.functional as F
import yaml
from data import (
    IGNORED,
    Batch,
    BatchLoader,
    align_equal_ends,
    align_last_read,
    encode_texts,
    load_texts,
    load_tokenizer,
)
from loss import DistillationLoss, StableDistillationLoss
from model import Distillation, LanguageModel
from teacher import load_teacher
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent


@dataclass
class Parts:
    """Everything one training run consists of."""

    config: dict[str, Any]
    model: Distillation
    ema: None
    loss: DistillationLoss
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler | None
    loader: BatchLoader
    evaluate: Callable[[], dict[str, float]]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        names = ["model", "loss", "optimizer", "scheduler"] + (["scaler"] if self.scaler else [])
        return {"step": self.loader.step, **{name: getattr(self, name).state_dict() for name in names}}

    def load(self, state: dict[str, Any]) -> None:
        self.loader.step = state["step"]
        for name in state.keys() - {"step"}:
            getattr(self, name).load_state_dict(state[name])


def read_config(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    return config


def build(config: dict[str, Any]) -> Parts:
    data, sizes, optim, loss = config["data"], config["student"], config["optim"], config["loss"]
    stable = config.get("stable", False)
    shared = config["tokenizers"] == "shared"
    cache = Path(config.get("cache_dir", HERE / "runs" / "cache"))

    texts = load_texts(data)
    teacher_tokenizer = load_tokenizer(data.get("teacher_tokenizer"), texts, data["teacher_vocab"])
    student_tokenizer = (
        teacher_tokenizer
        if shared
        else load_tokenizer(data.get("student_tokenizer"), texts, data["student_vocab"])
    )
    align = align_last_read if stable else align_equal_ends
    rows = encode_texts(texts, student_tokenizer, teacher_tokenizer, align)
    held_out = {name: values[: data["held_out"]] for name, values in rows.items()}
    training = {name: values[data["held_out"] :] for name, values in rows.items()}

    teacher = load_teacher(config["teacher"], training["teacher_ids"], teacher_tokenizer.vocab_size, cache)
    torch.manual_seed(config.get("seed", 0))
    student = LanguageModel(
        student_tokenizer.vocab_size,
        sizes["dim"],
        sizes["layers"],
        sizes["heads"],
        rows["student_ids"].shape[1],
    )
    model = Distillation(teacher, student)
    if not stable:
        model.half()
    criterion = (StableDistillationLoss if stable else DistillationLoss)(
        model, loss["weights"], loss["temperature"], shared
    )
    optimizer = torch.optim.AdamW(
        model.trainable(),
        lr=config["accelerated"]["lr"],
        eps=optim["eps"],
        weight_decay=optim["weight_decay"],
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / optim["warmup"]))
    scaler = torch.amp.GradScaler("cpu", init_scale=optim["init_scale"]) if stable else None
    loader = BatchLoader(training, optim["batch"], config.get("seed", 0))
    return Parts(
        config,
        model,
        None,
        criterion,
        optimizer,
        scheduler,
        scaler,
        loader,
        lambda: perplexity(student, held_out),
    )


@torch.no_grad()
def perplexity(student: nn.Module, rows: Batch) -> dict[str, float]:
    """Of the student on texts it was not trained on."""
    logits = student(rows["student_ids"]).logits.float()
    loss = F.cross_entropy(logits.flatten(0, 1), rows["labels"].flatten(), ignore_index=IGNORED)
    return {"perplexity": loss.exp().item()}


def loss_components(parts: Parts, batch: Batch) -> dict[str, Tensor]:
    """The weighted terms; the training loss is their sum."""
    with torch.autocast("cpu", torch.float16, enabled=parts.scaler is not None):
        components: dict[str, Tensor] = parts.loss(parts.model, batch)
    return components


def train_step(parts: Parts, batch: Batch) -> dict[str, float]:
    """One update; returns what is logged."""
    lr = float(parts.scheduler.get_last_lr()[0])
    parts.optimizer.zero_grad()
    components = loss_components(parts, batch)
    loss = torch.stack(list(components.values())).sum()
    if parts.scaler is None:
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(parts.model.trainable(), parts.config["optim"]["clip"])
        parts.optimizer.step()
        parts.scheduler.step()
    else:
        norm = scaled_update(parts, parts.scaler, loss)
    terms = {name: value.item() for name, value in components.items()}
    return {"loss": loss.item(), "grad_norm": norm.item(), "lr": lr, **terms}


def scaled_update(parts: Parts, scaler: torch.amp.GradScaler, loss: Tensor) -> Tensor:
    """Backward, unscale, clip, step; the schedule only moves when the scaler has let the step pass."""
    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    scaler.unscale_(parts.optimizer)
    norm = nn.utils.clip_grad_norm_(parts.model.trainable(), parts.config["optim"]["clip"])
    scaler.step(parts.optimizer)
    before = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() >= before:
        parts.scheduler.step()
    return norm


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
    parser.add_argument("--stop-on-nan", action="store_true", help="end at the first non-finite loss")
    options = parser.parse_args(argv)

    config = read_config(options.config)
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
        print(f"step {parts.loader.step}: perplexity {metrics['perplexity']:.2f}")
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
                f"\rstep {step}/{steps} loss {record['loss']:.4f} kd {record['kd']:.4f} ce {record['ce']:.4f}"
                f" norm {record['grad_norm']:.3g} lr {record['lr']:.2e} perplexity {metrics['perplexity']:.2f}",
                end="",
            )
            if options.stop_on_nan and not math.isfinite(record["loss"]):
                break
    metrics = {**parts.evaluate(), "steps": parts.loader.step, "seconds": time.perf_counter() - started}
    print(f"\n{json_line(metrics)}")
    return metrics


if __name__ == "__main__":
    main(sys.argv[1:])
