"""HealthProbe: the user's own look at the run. All state may be finite while every forward pass is NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Complex, Real
from typing import Any

import torch
from torch import Tensor

from stayfinite.findings import TensorSummary
from stayfinite.guarding.reporter import RunReporter
from stayfinite.hooks.interrupts import interrupts_pass, interrupts_wait
from stayfinite.recover.state import TrainingState
from stayfinite.recover.untouched import untouched
from stayfinite.watch.finite import summarize

_NAMED = 3
"""How many bad values a sentence names."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a probe saw."""

    values: list[TensorSummary] = field(default_factory=list)
    error: str | None = None  # the probe raised: many functions do when they are given NaN

    @property
    def bad(self) -> list[TensorSummary]:
        return [value for value in self.values if value.nan or value.inf]

    @property
    def is_bad(self) -> bool:
        return bool(self.error or self.bad)

    def __str__(self) -> str:
        if self.error:
            return f"the probe raised {self.error}"
        bad = self.bad
        more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        return "the probe found " + "; ".join(_said(value) for value in bad[:_NAMED]) + more


class HealthProbe:
    """Calls the user's function between two steps, and leaves no trace but a line in the record."""

    def __init__(self, fn: Callable[[], Any] | None, state: TrainingState, reporter: RunReporter) -> None:
        self._fn, self._state, self._reporter = fn, state, reporter
        self._worked = False

    @interrupts_wait()
    def look(self, at: str) -> Look:
        """Call it before something ("epoch", "snapshot", "save") or after ("restore", "refusal")."""
        if self._fn is None:
            return Look()
        with untouched(self._state), interrupts_pass():
            seen = self._call(self._fn)
        self._reporter.note(
            "probe",
            at=at,
            values={v.name: {"min": v.min, "max": v.max, "nan": v.nan, "inf": v.inf} for v in seen.values},
            **({"error": seen.error} if seen.error else {}),
        )
        return seen

    def _call(self, fn: Callable[[], Any]) -> Look:
        try:
            values = [summarize(name, tensor) for name, tensor in _named(fn(), "")]
        except Exception as error:
            if not self._worked:  # never yet: the probe itself is wrong, and its author must see it
                raise
            return Look(error=f"{type(error).__name__}: {error}")
        self._worked = True
        return Look(values)


def _named(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors and numbers under the names the user gave them."""
    if isinstance(value, Tensor):
        yield name or "value", value
    elif isinstance(value, Real):
        yield name or "value", torch.tensor(float(value), dtype=torch.float64)
    elif isinstance(value, Complex):
        yield name or "value", torch.tensor(complex(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _named(item, f"{name}[{index}]" if name else f"value[{index}]")
    else:
        raise TypeError(
            f"Guard(probe=...): the function must give a tensor, a number or a dict of named ones; "
            f"{name or 'it'} gave {type(value).__name__}"
        )


def _said(value: TensorSummary) -> str:
    return f"{value.nan} NaN and {value.inf} Inf in {value.name}"
