"""Clipping: gradient norms of at most 1."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE
from stayfinite.remedies.around_updates import around_updates
from stayfinite.remedies.remedy import Remedy


class Clipping(Remedy):
    """Gradient norms of at most 1."""

    name = "clipping"
    sentence = "clip the gradient norm at 1"
    kinds = DEPENDS_ON_SIZE
    popular, trains_otherwise, of_updates, rank = True, True, True, 10

    def applied(self) -> AbstractContextManager[None]:
        return around_updates(before=_clip)


def _clip(optimizer: Any) -> None:
    import torch

    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if parameters:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
