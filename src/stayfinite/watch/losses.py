"""What a step function may return: one loss, or named components of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_TOTALS = ("loss", "total")


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss that is trained, and its named components if there are any."""

    total: Tensor
    components: dict[str, Tensor]
    summed: bool = False  # the total is the sum of the components, so one of them can be left out


def split_aux(value: Any) -> tuple[Any, Any]:
    """A step function may give (loss, whatever else its caller wants to see)."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], (Tensor, Mapping)):
        return value
    return value, None


def as_loss(value: Any, leave_out: Collection[str] = ()) -> Loss:
    """Read the step function's result. A dict's entry "loss" or "total" is trained, else the sum of all
    (but for those to be left out)."""
    if isinstance(value, Tensor):
        return Loss(_scalar("the loss", value), {})
    if not isinstance(value, Mapping):
        raise TypeError(
            f"the step function must return the loss as a tensor or a dict of named tensors; "
            f"it returned {type(value).__name__}"
        )
    if not value:
        raise ValueError("the step function returned an empty dict; return at least one loss component")
    named = {str(key): _scalar(f"loss component {key!r}", item) for key, item in value.items()}
    for key in _TOTALS:
        if key in named:
            return Loss(named[key], {name: part for name, part in named.items() if name != key})
    parts = [part for name, part in named.items() if name not in leave_out]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return Loss(total, named, summed=True)


def _scalar(what: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} is a {type(value).__name__}, not a tensor; do not call .item() on it")
    if value.numel() != 1:
        raise ValueError(f"{what} has shape {tuple(value.shape)}; reduce it to one number, e.g. with .mean()")
    if value.is_complex():
        raise TypeError(f"{what} is complex; train its real part or magnitude")
    return value.reshape(()) if value.dim() else value


def require_gradient(loss: Tensor) -> None:
    """A loss that does not depend on any parameter cannot be trained; say what usually cut it off."""
    if not loss.requires_grad:
        where = (
            "torch.no_grad() is active"
            if not torch.is_grad_enabled()
            else "it was detached or every input is frozen"
        )
        raise ValueError(
            f"the loss has no gradient: {where}. Compute it from the model's output without "
            ".detach(), .item() or torch.no_grad()."
        )
