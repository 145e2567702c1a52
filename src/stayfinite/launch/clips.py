"""Observes gradient clipping: the norm before it, whether it was finite, whether a loss scale was still inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import ClipCall, Place
from stayfinite.hooks import Listening, listen
from stayfinite.launch.run_log import RunLog, here
from stayfinite.replay.measure import is_bad


@dataclass(slots=True)
class Watched:
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


class Clips:
    """All clipping of a run, by line."""

    def __init__(
        self, log: RunLog, scale_in: Callable[[list[torch.Tensor]], float | None], quiet: Any
    ) -> None:
        self._log, self._scale_in, self._quiet = log, scale_in, quiet
        self.known: dict[tuple[str | None, int | None], Watched] = {}
        self.on_error: Callable[[], None] | None = None

    def install(self, listening: Listening) -> None:
        listening.add(listen("clip", self._clipping))

    def _clipping(self, original: Any, parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        elif isinstance(parameters, Iterable):
            parameters = list(parameters)  # a generator can be read only once
        place = here()
        watched = self.known.setdefault((place.file, place.line), Watched(place, float(max_norm)))
        watched.calls += 1
        watched.error_if_nonfinite |= bool(kwargs.get("error_if_nonfinite", False))
        scale = self._scale_in(parameters)
        watched.scale = scale if scale is not None else watched.scale
        with self._quiet():
            bad = self._bad_gradients(parameters) if watched.nonfinite == 0 and watched.calls <= 64 else None
        try:
            norm = original(parameters, max_norm, *args, **kwargs)
        except RuntimeError:
            watched.raised = True
            if self.on_error is not None:
                self.on_error()
            raise
        with self._quiet():
            watched.norm = float(norm)
        if scale is None:
            self._log.current.grad_norm = watched.norm
        elif scale > 0:
            self._log.current.grad_norm = watched.norm / scale
        if not math.isfinite(watched.norm):
            watched.nonfinite += 1
            watched.mixed |= bad is not None and any(bad) and not all(bad)
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
