"""Observes gradient clipping: the norm before it, whether it was finite, whether a loss scale was still inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import ClipCall, Place
from stayfinite.hooks import Listening, listen
from stayfinite.observers.history import RunHistory, here
from stayfinite.replay.measure import is_bad


@dataclass(slots=True)
class ClippingLine:
    """All calls from one line."""

    place: Place
    max_norm: float
    calls: int = 0
    norm: float | None = None
    nonfinite: int = 0
    mixed: bool = False
    scale: float | None = None
    error_if_nonfinite: bool = False
    raised: bool = False


class ClipObserver:
    """All clipping of a run, by line."""

    def __init__(
        self, log: RunHistory, scale_in: Callable[[list[torch.Tensor]], float | None], quiet: Any
    ) -> None:
        self._log, self._scale_in, self._quiet = log, scale_in, quiet
        self.known: dict[tuple[str | None, int | None], ClippingLine] = {}
        self.on_error: Callable[[], None] | None = None

    def install(self, listening: Listening) -> None:
        listening.add(listen("clip", self._clipping))

    def _clipping(self, original: Any, parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        elif isinstance(parameters, Iterable):
            parameters = list(parameters)  # a generator can be read only once
        place = here()
        seen = self.known.setdefault((place.file, place.line), ClippingLine(place, float(max_norm)))
        seen.calls += 1
        seen.error_if_nonfinite |= bool(kwargs.get("error_if_nonfinite", False))
        scale = self._scale_in(parameters)
        seen.scale = scale if scale is not None else seen.scale
        with self._quiet():
            bad = self._bad_gradients(parameters) if seen.nonfinite == 0 and seen.calls <= 64 else None
        try:
            norm = original(parameters, max_norm, *args, **kwargs)
        except RuntimeError:
            seen.raised = True
            if self.on_error is not None:
                self.on_error()
            raise
        with self._quiet():
            seen.norm = float(norm)
        if scale is None:
            self._log.current.grad_norm = seen.norm
        elif scale > 0:
            self._log.current.grad_norm = seen.norm / scale
        if not math.isfinite(seen.norm):
            seen.nonfinite += 1
            seen.mixed |= bad is not None and any(bad) and not all(bad)
        return norm

    def _bad_gradients(self, parameters: list[torch.Tensor]) -> list[bool]:
        return [is_bad(p.grad) for p in parameters if p.grad is not None]

    def facts(self) -> tuple[ClipCall, ...]:
        return tuple(
            ClipCall(
                place=w.place,
                max_norm=w.max_norm,
                calls=w.calls,
                norm=w.norm,
                nonfinite_norms=w.nonfinite,
                mixed=w.mixed,
                scaled=w.scale is not None,
                scale=w.scale,
                error_if_nonfinite=w.error_if_nonfinite,
                raised=w.raised,
            )
            for w in self.known.values()
        )
