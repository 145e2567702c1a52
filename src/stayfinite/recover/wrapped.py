"""What frameworks wrap: the optimizer that really steps, and the one that a schedule is really about."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer


def unwrapped(optimizer: Any) -> Any:
    """Accelerate's optimizer keeps the script's own in `optimizer`, and has no parameters and no state of its own."""
    while isinstance(optimizer, Optimizer) and isinstance(
        inner := vars(optimizer).get("optimizer"), Optimizer
    ):
        optimizer = inner
    return optimizer


def optimizer_of(scheduler: Any) -> Any:
    """The optimizer whose rates this scheduler sets; None if it does not say."""
    inner = vars(scheduler).get("scheduler", scheduler) if hasattr(scheduler, "__dict__") else scheduler
    return unwrapped(getattr(inner, "optimizer", None))
