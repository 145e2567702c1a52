"""Whether a loaded optimizer state has lost its second moments: 0 throughout, beside first ones that are not."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch

from stayfinite.replay.measure import is_plain

_LEAST = 1e-15  # of a first moment: the squares of its gradients are far above 0 in float32
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


def _is_wide(moment: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(moment, torch.Tensor) and is_plain(moment) and moment.dtype in _WIDE
