"""Second moments of a loaded optimizer state that are none: negative, or 0 beside first ones that are not."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch

from stayfinite.findings.subjects.run_record import Sizes
from stayfinite.replay.measure import is_plain

_LEAST = 1e-15  # of a first moment: the squares of its gradients are far above 0 in float32
_SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")  # that an optimizer takes the root of
_WIDE = (torch.float32, torch.float64)


def lost_squares(optimizer: torch.optim.Optimizer) -> float:
    """The largest first moment if no second moment is above 0; else 0."""
    largest = 0.0
    for state in list(optimizer.state.values()):
        kept = state if isinstance(state, dict) else {}  # some optimizers keep numbers of their own there
        first, second = kept.get("exp_avg"), kept.get("exp_avg_sq")
        if not _is_wide(first) or not _is_wide(second) or bool((second != 0).any()):
            return 0.0
        if first.numel():
            largest = max(largest, float(first.abs().max()))
    return largest if largest > _LEAST else 0.0


def negative_squares(optimizer: torch.optim.Optimizer) -> Sizes:
    """Second moments below zero, by the number that their parameter has in a state_dict, with the lowest value."""
    found = []
    for number, weight in enumerate(weight for group in optimizer.param_groups for weight in group["params"]):
        kept = optimizer.state.get(weight)
        for key in _SQUARES:
            second = kept.get(key) if isinstance(kept, dict) else None
            if _is_wide(second) and second.numel() and (lowest := float(second.min())) < 0:
                found.append((f"{key} of parameter {number}", lowest))
    return tuple(found)


def _is_wide(moment: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(moment, torch.Tensor) and is_plain(moment) and moment.dtype in _WIDE
