"""Follows the rate that a load brought until the optimizer uses it: did a scheduler put another in its place?"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import Place, RateChange


@dataclass(slots=True)
class _Loaded:
    """A rate between load_state_dict and the next step of its optimizer."""

    optimizer: weakref.ref[torch.optim.Optimizer]
    rate: float  # what it is as far as the load and the schedulers are concerned
    change: RateChange | None = None
    settled: bool = False  # the script set the rate itself, or gave the scheduler its own state


class ResumedLearningRates:
    """Rates of loaded optimizer states that no step has used yet."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Loaded] = {}

    def loaded(self, optimizer: torch.optim.Optimizer, rate: float | None) -> None:
        """load_state_dict of an optimizer ran and brought this rate."""
        self._waiting.pop(id(optimizer), None)
        if rate is not None:
            self._waiting[id(optimizer)] = _Loaded(weakref.ref(optimizer), rate)

    def scheduled(
        self, optimizer: Any, kind: str, how: str, before: float | None, after: float | None, place: Place
    ) -> None:
        """A scheduler was made for this optimizer, or stepped."""
        waiting = self._find(optimizer)
        if waiting is None or before is None or after is None:
            return
        waiting.settled |= before != waiting.rate
        waiting.rate = after
        if before != after:
            calls = waiting.change.calls + 1 if waiting.change is not None else 1
            waiting.change = RateChange(kind, how, after, calls, place)

    def scheduler_loaded(self, optimizer: Any) -> None:
        """The state of a scheduler came back: it knows where it is."""
        waiting = self._find(optimizer)
        if waiting is not None:
            waiting.settled = True

    def used(self, optimizer: torch.optim.Optimizer, rate: float) -> RateChange | None:
        """The optimizer steps with this rate: what a scheduler did to it since the load, if it was that."""
        waiting = self._find(optimizer)
        self._waiting.pop(id(optimizer), None)
        return (
            waiting.change if waiting is not None and not waiting.settled and rate == waiting.rate else None
        )

    def _find(self, optimizer: Any) -> _Loaded | None:
        waiting = self._waiting.get(id(optimizer))
        return waiting if waiting is not None and waiting.optimizer() is optimizer else None
