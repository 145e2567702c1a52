"""The system before its training, for `stayfinite probe probe:factory`; `stayfinite doctor .` finds it here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import train
from torch import Tensor, nn


def factory() -> tuple[Any, ...]:
    """The model, a batch and the loss as they are configured, and the optimizer."""
    parts = train.build(train.read_config(train.HERE / "config.yaml"))

    def loss(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return train.loss_components(replace(parts, model=model), batch)

    return parts.model, lambda: next(iter(parts.loader)), loss, parts.optimizer
