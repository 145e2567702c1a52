"""Trains the radio-map model: python train.py [--config FILE] [--steps N] [--seed S] [--out DIR] [--resume CKPT]."""

from __future__ import annotations

import argparse
import copy
import itertools
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
from data import Batch, MapLoader, load_maps
from loss import DecoupledLoss, add_noise, nmse
from model import ConditionalUNet
from torch import Tensor, nn
from vae import KLAutoencoder, load_vae

HERE = Path(__file__).resolve().parent
HELD_OUT_SEED = 10_000
DTYPES = {"no": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class EMA(nn.Module):
    """An average of the weights over the steps."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay, self.model = decay, copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for average, value in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(value, 1 - self.decay)


@dataclass
class Parts:
    """Everything one training run consists of."""

    config: dict[str, Any]
    model: nn.Module
    ema: EMA
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LambdaLR
    scaler: torch.amp.GradScaler
    loader: MapLoader
    evaluate: Callable[[], dict[str, float]]
    vae: KLAutoencoder  # frozen

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        saved = {
            name: getattr(self, name).state_dict()
            for name in ("model", "ema", "optimizer", "scheduler", "scaler")
        }
        return {"step": self.loader.step, **saved}

    def load(self, state: dict[str, Any]) -> None:
        self.loader.step = state["step"]
        for name in ("model", "ema", "optimizer", "scheduler", "scaler"):
            getattr(self, name).load_state_dict(state[name])


def read_config(path: Path) -> dict[str, Any]:
    """The reported values; those in the section `accelerated` take their place."""
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    config |= config.pop("accelerated")
    return config


def mixed_precision(config: dict[str, Any]) -> str:
    """The precision the accelerator is made with: no, fp16 or bf16."""
    if config["stable"]:
        return str(config["mixed_precision"])
    return "fp16" if config["fp16"] else "no"


def autocast(config: dict[str, Any]) -> torch.autocast:
    if config["stable"]:
        dtype = DTYPES[mixed_precision(config)]
        return torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32)
    default = torch.get_autocast_dtype("cuda")  # the original trains on a GPU
    return torch.autocast("cpu", dtype=default, enabled=config["amp"])


def build(config: dict[str, Any]) -> Parts:
    torch.manual_seed(config["seed"])
    conditions, maps = load_maps(config)
    held = config["eval_maps"]
    vae = load_vae(config["latent_channels"], config["vae_file"], maps[held:])
    latent_shape = tuple(vae.encode(maps[:1]).shape[1:])
    loader = MapLoader(conditions[held:], maps[held:], latent_shape, config["batch_size"], config["seed"])
    model = ConditionalUNet(config)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), config["lr"], weight_decay=config["weight_decay"])
    total, floor, warmup = config["steps"], config["min_lr"], config["warmup"]

    def share_of_rate(step: int) -> float:
        rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return rising * max((1 - min(step, total) / total) ** 0.96, floor)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_rate)
    scaler = torch.amp.GradScaler("cpu", enabled=mixed_precision(config) == "fp16")
    noise = torch.randn(held, *latent_shape, generator=torch.Generator().manual_seed(HELD_OUT_SEED))

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        latent = sample(model, noise, conditions[:held], config["sampling_steps"])
        return {"nmse": nmse(vae.decode(latent), maps[:held])}

    ema = EMA(model, config["ema"])
    return Parts(config, model, ema, DecoupledLoss(), optimizer, scheduler, scaler, loader, evaluate, vae)


def sample(model: nn.Module, noise: Tensor, condition: Tensor, steps: int) -> Tensor:
    """From noise at t = 1 to a latent at t = 0, without new noise."""
    x, times = noise, torch.linspace(1, 0, steps + 1)
    for now, later in itertools.pairwise(times):
        c, eps = model(x, now.expand(len(x)), condition)
        x = x + c * (later - now) + eps * (later.sqrt() - now.sqrt())
    return x


def loss_components(parts: Parts, batch: Batch) -> dict[str, Tensor]:
    x0 = parts.vae.encode(batch.maps)
    noisy = add_noise(x0, batch.noise, batch.time)
    with autocast(parts.config):
        c, noise = parts.model(noisy, batch.time, batch.condition)
    components: dict[str, Tensor] = parts.loss(c, noise, x0, batch.noise, batch.time)
    return components


def train_step(parts: Parts, batch: Batch) -> dict[str, float]:
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
    parts.scheduler.step()
    parts.ema.update(parts.model)
    return {name: value.item() for name, value in components.items()} | {
        "loss": loss.item(),
        "grad_norm": norm.item(),
        "lr": lr,
    }


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
        print(f"step {parts.loader.step}: NMSE {metrics['nmse']:.3f}")
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
                f" lr {record['lr']:.2e} NMSE {metrics['nmse']:.3f}",
                end="",
            )
            if options.stop_on_nan and not math.isfinite(record["loss"]):
                break
    metrics = {**parts.evaluate(), "steps": parts.loader.step, "seconds": time.perf_counter() - started}
    print(f"\n{json_line(metrics)}")
    return metrics


if __name__ == "__main__":
    main(sys.argv[1:])
