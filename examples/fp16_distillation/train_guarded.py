"""The same training under guard: python train_guarded.py [--config FILE] [--steps N] [--seed S] [--out DIR]."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
from data import Batch
from torch import Tensor
from train import HERE, build, json_line, loss_components, read_config

from stayfinite import Guard, RunStopped


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=HERE / "config.yaml")
    parser.add_argument("--steps", type=int, help="default: train.steps of the config")
    parser.add_argument("--seed", type=int, help="default: seed of the config")
    parser.add_argument("--out", type=Path, help="default: runs/guarded_<config> beside this file")
    options = parser.parse_args(argv)

    config = read_config(options.config)
    config["seed"] = config["seed"] if options.seed is None else options.seed
    parts = build(config)
    guard = Guard(
        {"model": parts.model, "loss": parts.loss},
        parts.optimizer,
        parts.scheduler,
        parts.scaler,
        clip_norm=config["optim"]["clip"],
        run_dir=options.out or HERE / "runs" / f"guarded_{options.config.stem}",
    )

    def components(batch: Batch) -> dict[str, Tensor]:
        """The terms of the loss; the router's confidence is watched along the way."""
        terms = loss_components(parts, batch)
        guard.observe(router_entropy=terms["router_entropy"] / config["loss"]["weights"]["router_entropy"])
        return terms

    code = 0
    try:
        for _, batch in zip(range(options.steps or config["train"]["steps"]), parts.loader, strict=False):
            guard.step(partial(components, batch), batch=batch)
        guard.save(guard.run_dir / "final.pt")  # refused, should any of it not be finite
    except RunStopped as reason:
        print(reason)
        code = 1
    guard.close()
    print(json_line({**parts.evaluate(), **guard.counters.to_dict()}))
    return code


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
