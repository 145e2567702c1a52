"""Observes targets of losses that take anything: binary_cross_entropy_with_logits does not check for 0..1."""

from __future__ import annotations

from typing import Any

import torch

from stayfinite.findings.subjects.run_record import Place, TargetFacts
from stayfinite.observers.history import here
from stayfinite.observers.ownership import Hear
from stayfinite.replay.measure import measurable
from stayfinite.replay.tracer import unfollowed

_FIRST, _THEN_EVERY = 4, 64


class TargetObserver:
    """The range of what each line gave as a target; the first calls are looked at, then one in 64."""

    def __init__(self) -> None:
        self._calls = 0
        self._ranges: dict[Place, tuple[int, float, float]] = {}

    def install(self, hear: Hear) -> None:
        hear("binary_target", self._loss)

    def _loss(self, original: Any, logits: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        if (self._calls <= _FIRST or self._calls % _THEN_EVERY == 0) and isinstance(target, torch.Tensor):
            self._look(target)
        return original(logits, target, *args, **kwargs)

    def _look(self, target: torch.Tensor) -> None:
        if not measurable(target) or not target.numel():
            return
        with unfollowed():
            low, high = float(target.detach().min()), float(target.detach().max())
        place = here()
        calls, lowest, highest = self._ranges.get(place, (0, low, high))
        self._ranges[place] = (calls + 1, min(low, lowest), max(high, highest))

    def facts(self) -> tuple[TargetFacts, ...]:
        return tuple(TargetFacts(place, *seen) for place, seen in self._ranges.items())
