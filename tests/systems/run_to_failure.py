"""Runs an example's own training loop to its first non-finite loss and finds the op of that forward pass."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from systems.first_nonfinite import Birth, find_birth


@dataclass(frozen=True)
class Failure:
    step: int  # 1-based
    birth: Birth | None  # None: a second forward pass with the same weights, batch and RNG was finite
    parts: Any  # as the failing step left them
    before: dict[str, torch.Tensor]  # the model's state before the failing step
    batch: Any


def run_to_failure(
    example: SimpleNamespace, config: dict[str, Any], limit: int, threads: int = 1
) -> Failure | None:
    """Train up to `limit` steps; stop at the first loss that is NaN or Inf and replay its forward pass."""
    torch.set_num_threads(threads)
    parts = example.train.build(config)
    batches = iter(parts.loader)
    for step in range(1, limit + 1):
        batch = next(batches)
        before, rng = copy.deepcopy(parts.model.state_dict()), torch.get_rng_state()
        record = example.train.train_step(parts, batch)
        if math.isfinite(record["loss"]):
            continue
        after = copy.deepcopy(parts.model.state_dict())
        parts.model.load_state_dict(before)
        torch.set_rng_state(rng)
        with find_birth(parts.optimizer) as mode:
            example.train.loss_components(parts, batch)
        parts.model.load_state_dict(after)
        return Failure(step, mode.birth, parts, before, batch)
    return None


def non_finite(state: dict[str, torch.Tensor]) -> set[str]:
    """The names of the tensors that hold a NaN or Inf."""
    return {name for name, value in state.items() if not bool(torch.isfinite(value).all())}
