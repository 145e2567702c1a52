"""The faults themselves: a NaN in a batch, an Inf in a gradient, a learning rate of Inf."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree


def with_nan(batch: Any) -> tuple[Any, int]:
    """The same batch with its first sample NaN in every float tensor, and how many there are. Nothing is written to."""
    hit = 0

    def spoil(value: Any) -> Any:
        nonlocal hit
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.numel() == 0:
            return value
        hit += 1
        spoiled = value.detach().clone().requires_grad_(value.requires_grad)
        with torch.no_grad():
            (spoiled if spoiled.dim() == 0 else spoiled[0]).fill_(math.nan)
        return spoiled

    return _pytree.tree_map(spoil, batch), hit


def nan_in_output(output: Any) -> tuple[Any, bool]:
    """What a module gave, with a NaN in its first sample; its gradient goes on to what made it."""
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.numel() == 0:
        return output, False
    fault = torch.zeros_like(output)
    (fault if fault.dim() == 0 else fault[0]).fill_(math.nan)
    return output + fault, True


def inf_in_gradient(optimizers: Sequence[Optimizer]) -> str | None:
    """Put an Inf into the first gradient there is; says of which parameter."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for position, parameter in enumerate(group["params"]):
                gradient = parameter.grad
                if gradient is None or gradient.layout is not torch.strided or gradient.numel() == 0:
                    continue
                with torch.no_grad():
                    gradient[(0,) * gradient.dim()] = math.inf
                return f"the gradient of parameter {position} {tuple(parameter.shape)}"
    return None


class InfiniteRate:
    """A learning rate of Inf for one update, such as a schedule that divides by zero gives."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._groups = [(group, group["lr"]) for group in optimizer.param_groups if "lr" in group]
        self._saved = [rate.clone() if isinstance(rate, Tensor) else rate for _, rate in self._groups]

    @property
    def possible(self) -> bool:
        return bool(self._groups)

    def put_in(self) -> None:
        for group, rate in self._groups:
            if isinstance(rate, Tensor):
                rate.fill_(math.inf)
            else:
                group["lr"] = math.inf

    def take_out(self) -> None:
        """The fault is over. Who changed the rate meanwhile keeps what was chosen."""
        for (group, _), saved in zip(self._groups, self._saved, strict=True):
            rate = group["lr"]
            if math.isfinite(float(rate)):
                continue
            if isinstance(rate, Tensor):
                rate.copy_(saved)
            else:
                group["lr"] = saved
