"""The gradients of a run as they are now, for the look at a run that is over."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from stayfinite.findings.subjects.run_record import GradientFacts
from stayfinite.replay.measure import is_plain, magnitude

_MOST = 256


def gradient_facts(parameters: Mapping[torch.Tensor, str]) -> tuple[GradientFacts, ...]:
    """Of parameters that are trained, by name."""
    found: list[GradientFacts] = []
    for parameter, name in parameters.items():
        gradient = parameter.grad
        if not parameter.requires_grad:
            continue
        if gradient is None:
            found.append(GradientFacts(name, None, zero=False, missing=True))
        elif is_plain(gradient):
            size = magnitude(gradient)
            nan, inf = int(torch.isnan(gradient).sum()), int(torch.isinf(gradient).sum())
            found.append(
                GradientFacts(name, size if math.isfinite(size) else None, size == 0, False, nan, inf)
            )
        if len(found) == _MOST:
            break
    return tuple(found)
