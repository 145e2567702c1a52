"""Which updates can be bad in themselves: made from finite gradients, and not finite all the same."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.optim import Optimizer

_KNOWN = {
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD",
    "SparseAdam", "Adafactor",
}  # fmt: skip
"""torch's own optimizers whose update is finite if gradients, state and settings are, their eps is not 0 and the
gradients are not enormous."""

_NEVER_INFINITE = {
    "lr", "initial_lr", "max_lr", "min_lr", "base_lr", "swa_lr", "momentum", "dampening", "weight_decay", "eps",
    "betas", "alpha", "rho", "lr_decay", "lambd", "t0", "momentum_decay",
}  # fmt: skip


def update_may_break(optimizer: Optimizer) -> str | None:
    """Why an update of this optimizer must be made with a copy at hand; None if it need not be."""
    kind = type(optimizer)
    if not (kind.__module__.startswith("torch.optim") and kind.__name__ in _KNOWN):
        return f"{kind.__name__} is not known to keep finite what is finite"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "it has hooks that may raise in the middle of a step"
    for group in optimizer.param_groups:
        if group.get("centered"):
            return "centered RMSprop takes the root of a difference"
        if group.get("eps") == 0:
            return "its eps is 0"
        if any(parameter.dtype is torch.float16 for parameter in group["params"]):
            return "it updates float16 parameters"
    return None


def calls_closure_once(optimizer: Optimizer) -> bool:
    """The closure of `step(closure)` is a forward and a backward pass before the update; LBFGS and the like call it
    in between."""
    kind = type(optimizer)
    return kind.__module__.startswith("torch.optim") and kind.__name__ in _KNOWN


def bad_settings(optimizers: list[Optimizer]) -> list[str]:
    """Settings that are not finite, as sentences. Infinity is a fair value for some, NaN for none."""
    return [
        f"the {'learning rate' if key == 'lr' else key} of group {number} of {type(optimizer).__name__} is {bad}"
        for optimizer in optimizers
        for number, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key != "params"
        for bad in _numbers(value)
        if math.isnan(bad) or (math.isinf(bad) and key in _NEVER_INFINITE)
    ]


def _numbers(value: object) -> tuple[float, ...]:
    if isinstance(value, float):
        return (value,)
    if isinstance(value, tuple):
        return tuple(float(part) for part in value if isinstance(part, (int, float)))
    if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return (float(value),)
    return ()
