"""Trains the language model: python train.py [--config FILE] [--steps N] [--seed S] [--out DIR] [--resume CKPT]."""

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
from data import Batch, SentenceLoader, load_sentences, noised
from loss import DiffusionLoss, StableDiffusionLoss, add_noise
from model import LatentDLM
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
    scheduler: torch.optim.lr_scheduler.LambdaLR
    scaler: None  # bfloat16 needs none
    loader: SentenceLoader
    evaluate: Callable[[], dict[str, float]]
    mask_token: int

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        saved = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler")}
        return {"step": self.loader.step, **saved}

    def load(self, state: dict[str, Any]) -> None:
        self.loader.step = state["step"]
        for name in ("model", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(state[name])


def read_config(path: Path) -> dict[str, Any]:
    """The reported values; those in the section `accelerated` take their place."""
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    config |= config.pop("accelerated")
    return config


def build(config: dict[str, Any]) -> Parts:
    torch.manual_seed(config["seed"])
    tokens, latents, tokenizer = load_sentences(config)
    held = config["eval_sentences"]
    loader = SentenceLoader(tokens[held:], latents[held:], config["batch_size"], config["seed"])
    model = LatentDLM(config, tokenizer.size)
    loss: nn.Module
    if config["stable"]:  # float32 weights and Adam state, all keys of the config in effect
        loss = StableDiffusionLoss(config["text_weight"], config["latent_weight"])
        betas = (config["beta1"], config["beta2"])
    else:
        model.to(torch.bfloat16 if config["precision"] == "bfloat16" else torch.float32)
        loss, betas = DiffusionLoss(), (0.9, 0.99)
    optimizer = torch.optim.AdamW(
        model.parameters(), config["lr"], betas, eps=config["eps"], weight_decay=config["weight_decay"]
    )

    warmup: int = config["warmup"]

    def warmup_then_cosine(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, config["steps"] - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_then_cosine)
    generator = torch.Generator().manual_seed(HELD_OUT_SEED)
    held_out = noised(tokens[:held], latents[:held], "unconditional", generator)

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        logits, _ = predict(parts, held_out)
        ce = nn.functional.cross_entropy(logits.float().transpose(1, 2), held_out.tokens, reduction="none")
        return {"masked_cross_entropy": ce[held_out.masked].mean().item()}

    parts = Parts(config, model, None, loss, optimizer, scheduler, None, loader, evaluate, tokenizer.mask)
    return parts


def predict(parts: Parts, batch: Batch) -> tuple[Tensor, Tensor]:
    hidden = batch.tokens.masked_fill(batch.masked, parts.mask_token)
    noisy = add_noise(batch.latent, batch.noise, batch.latent_time)
    autocast = parts.config["stable"] and parts.config["precision"] == "bfloat16"
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        logits, predicted = parts.model(hidden, noisy, batch.text_time, batch.latent_time)
    return logits, predicted


def loss_components(parts: Parts, batch: Batch) -> dict[str, Tensor]:
    logits, predicted = predict(parts, batch)
    components: dict[str, Tensor] = parts.loss(
        logits, predicted, batch.tokens, batch.masked, batch.noise, batch.mode
    )
    return components


def train_step(parts: Parts, batch: Batch) -> dict[str, float]:
    """One micro-batch, as the original handles it; returns what is logged."""
    lr = float(parts.scheduler.get_last_lr()[0])
    accumulation = parts.config["accumulation"]
    components = loss_components(parts, batch)
    loss = torch.stack(list(components.values())).sum()
    record = {name: value.item() for name, value in components.items()} | {"loss": loss.item(), "lr": lr}
    if not math.isfinite(record["loss"]):  # skip the batch, go on with the next
        parts.optimizer.zero_grad()
        parts.scheduler.step()
        return record | {"grad_norm": math.nan}
    (loss / accumulation).backward()
    if parts.loader.step % accumulation:
        return record | {"grad_norm": math.nan}
    norm = nn.utils.clip_grad_norm_(parts.model.parameters(), parts.config["clip_norm"])
    if not torch.isnan(norm):
        parts.optimizer.step()
    parts.optimizer.zero_grad()
    parts.scheduler.step()
    return record | {"grad_norm": norm.item()}


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
        print(f"step {parts.loader.step}: masked cross entropy {metrics['masked_cross_entropy']:.3f}")
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
                f" lr {record['lr']:.2e} cross entropy {metrics['masked_cross_entropy']:.3f}",
                end="",
            )
            if options.stop_on_nan and not math.isfinite(record["loss"]):
                break
    metrics = {**parts.evaluate(), "steps": parts.loader.step, "seconds": time.perf_counter() - started}
    print(f"\n{json_line(metrics)}")
    return metrics


if __name__ == "__main__":
    main(sys.argv[1:])
