"""Observes gradient clipping: the norm before it, whether it was finite, whether a loss scale was still inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import ClipCall, Place, StepRecord
from stayfinite.observers.history import RunHistory, here
from stayfinite.observers.ownership import Hear, Ownership
from stayfinite.replay.tracer import unfollowed


@dataclass(slots=True)
class ClippingLine:
    """All calls from one line."""

    place: Place
    max_norm: float
    calls: int = 0
    norm: float | None = None
    nonfinite: int = 0
    first_bad: int | None = None  # step
    mixed: bool = False
    scale: float | None = None
    error_if_nonfinite: bool = False
    raised: bool = False


class ClipObserver:
    """All clipping of a run, by line. Nothing is asked of the device unless the step turns out to be bad."""

    def __init__(
        self,
        history: RunHistory,
        ownership: Ownership,
        scale_in: Callable[[list[torch.Tensor]], float | None],
    ) -> None:
        self._history, self._ownership, self._scale_in = history, ownership, scale_in
        self.known: dict[tuple[str | None, int | None], ClippingLine] = {}
        self._waiting: list[tuple[ClippingLine, torch.Tensor, int]] = []  # norms of the step that runs now
        self.on_error: Callable[[], None] | None = None
        history.listeners.append(self._step_is_over)

    def install(self, hear: Hear) -> None:
        hear("clip", self._clipping)

    def _clipping(self, original: Any, parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        elif isinstance(parameters, Iterable):
            parameters = list(parameters)  # a generator can be read only once
        if not self._ownership.of_parameters(parameters):
            return original(parameters, max_norm, *args, **kwargs)
        place = here()
        seen = self.known.setdefault((place.file, place.line), ClippingLine(place, float(max_norm)))
        seen.calls += 1
        seen.error_if_nonfinite |= bool(kwargs.get("error_if_nonfinite", False))
        scale = self._scale_in(parameters)
        seen.scale = scale if scale is not None else seen.scale
        try:
            norm = original(parameters, max_norm, *args, **kwargs)
        except RuntimeError:
            seen.raised = True
            if self.on_error is not None:
                self.on_error()
            raise
        if isinstance(norm, torch.Tensor):
            self._waiting = [*self._waiting[-7:], (seen, norm.detach(), self._history.step)]
        return norm

    def _step_is_over(self, record: StepRecord) -> None:
        """Where a guard saw a finite loss and finite gradients, so were the norms by which they were clipped."""
        bad = any(value is not None and not math.isfinite(value) for value in (record.loss, record.grad_norm))
        if bad or not self._history.guarded:
            self._look()
        self._waiting = self._waiting[-1:]

    def _look(self) -> None:
        with unfollowed():
            for seen, norm, step in self._waiting:
                seen.norm = float(norm)
                if not math.isfinite(seen.norm):
                    seen.nonfinite += 1
                    seen.first_bad = step if seen.first_bad is None else seen.first_bad
        self._waiting = []

    def bad_gradients(self, bad: int, of: int) -> None:
        """A guard has seen which gradients of this step were bad before they were clipped."""
        for seen, _, _ in self._waiting:
            seen.mixed |= 0 < bad < of

    def facts(self) -> tuple[ClipCall, ...]:
        with unfollowed():
            for seen, norm, _ in self._waiting:
                seen.norm = float(norm)
        return tuple(
            ClipCall(
                place=w.place,
                max_norm=w.max_norm,
                calls=w.calls,
                norm=w.norm,
                nonfinite_norms=w.nonfinite,
                first_bad=w.first_bad,
                mixed=w.mixed,
                scaled=w.scale is not None,
                scale=w.scale,
                error_if_nonfinite=w.error_if_nonfinite,
                raised=w.raised,
            )
            for w in self.known.values()
        )
