"""Whether a loaded optimizer state has lost its second moments: 0 throughout, beside first ones that are not."""

from __future__ import annotations

import torch

from stayfinite.replay.measure import is_plain

_LEAST = 1e-15  # of a first moment: the squares of its gradients are far above 0 in float32
_WIDE = (torch.float32, torch.float64)


def lost_squares(optimizer: torch.optim.Optimizer) -> float:
    """The largest first moment if no second moment is above 0; else 0."""
    largest = 0.0
    for state in list(optimizer.state.values()):
        first, second = state.get("exp_avg"), state.get("exp_avg_sq")
        for one in (first, second):
            if not isinstance(one, torch.Tensor) or not is_plain(one) or one.dtype not in _WIDE:
                return 0.0
        if not first.numel():
            continue
        if bool((second != 0).any()):
            return 0.0
        largest = max(largest, float(first.abs().max()))
    return largest if largest > _LEAST else 0.0
