"""Signs of trouble in a script that never trained: is a second, traced run worth it?"""

from __future__ import annotations

import torch

from stayfinite.observers.run_observers import RunObservers
from stayfinite.replay.living import living, living_models
from stayfinite.replay.measure import measurable
from stayfinite.replay.noticed import WHOLE_UP_TO
from stayfinite.replay.tracer import unfollowed

_SWOLLEN = 1e10
"""A gradient this large is born of a division by next to nothing, finite or not."""
_MOST_TENSORS, _MOST_VALUES = 2000, 1 << 24


def sign_of_trouble(observers: RunObservers) -> str | None:
    """What is odd about the tensors that a script left behind; None if nothing is."""
    with unfollowed():
        for tensor in _living_tensors():
            gradient = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
            for what, value in (("a tensor", tensor), ("a gradient", gradient)):
                if value is not None and measurable(value):
                    sign = _sign(value.detach(), gradient=value is gradient)
                    if sign is not None:
                        return f"{what} of shape {tuple(value.shape)} holds {sign}"
        if observers.replicas is not None and observers.replicas.drifted(living_models()):
            return "copies of one model, both with gradients, have different weights"
    return None


def _living_tensors() -> list[torch.Tensor]:
    found = [t for t in living((torch.Tensor,)) if type(t) in (torch.Tensor, torch.nn.Parameter)]
    return [tensor for tensor in found[:_MOST_TENSORS] if 0 < tensor.numel() <= _MOST_VALUES]


def _sign(value: torch.Tensor, *, gradient: bool) -> str | None:
    if not (value.is_floating_point() or value.is_complex()):
        return None
    if bool(torch.isnan(value).any()):
        return "NaN"
    if value.is_complex():
        return None
    if not gradient and _counts_in_vain(value):
        return "whole numbers in a row, some of them twice"
    value = value.float() if value.element_size() == 1 else value
    if bool(torch.isposinf(value).any()):
        return "Inf"  # -inf alone is a mask
    if gradient and bool((value.abs() > _SWOLLEN).any()):
        return f"values beyond {_SWOLLEN:g}"
    return None


def _counts_in_vain(value: torch.Tensor) -> bool:
    """0, 1, 2, ... in a dtype that cannot tell all of them apart."""
    limit = WHOLE_UP_TO.get(value.dtype)
    if limit is None or value.dim() != 1 or value.numel() <= limit:
        return False
    counted = torch.arange(value.numel(), dtype=torch.float32, device=value.device)
    return bool((value == counted.to(value.dtype)).all())
