"""What frameworks wrap: the optimizer that really steps, and the one that a schedule is really about."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

_FRAMEWORKS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")
"""Their wrappers keep the script's own optimizer in `optimizer`, and have no parameters and no state of their own."""


def unwrapped(optimizer: Any) -> Any:
    """The optimizer itself. Wrappers with a step of their own (Lookahead, SAM) are optimizers, too."""
    while type(optimizer).__module__.partition(".")[0] in _FRAMEWORKS:
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer) or inner is optimizer:
            break
        optimizer = inner
    return optimizer


def optimizer_of(scheduler: Any) -> Any:
    """The optimizer whose rates this scheduler sets; None if it does not say."""
    inner = getattr(scheduler, "scheduler", scheduler)  # Accelerate's
    return unwrapped(getattr(inner, "optimizer", None))
