"""The gradients of a run as they are now, for the look at a run that is over."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from stayfinite.findings.subjects.run_record import GradientFacts
from stayfinite.replay.measure import is_plain, magnitude

_MOST = 256


def gradient_facts(parameters: Iterable[torch.Tensor]) -> tuple[GradientFacts, ...]:
    """Of parameters that are trained."""
    found: list[GradientFacts] = []
    for parameter in parameters:
        gradient = parameter.grad
        if not parameter.requires_grad:
            continue
        if gradient is None:
            found.append(GradientFacts(zero=False, missing=True))
        elif is_plain(gradient):
            found.append(GradientFacts(zero=magnitude(gradient) == 0, missing=False))
        if len(found) == _MOST:
            break
    return tuple(found)
