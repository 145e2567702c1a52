"""What to draw of a log: one panel a quantity, its curve in buckets, its non-finite values, and what happened when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from stayfinite.findings.subjects.log import Log, Role, Series

_ORDER = (Role.LOSS, Role.COMPONENT, Role.EVALUATION, Role.NORM, Role.UPDATE, Role.RATE, Role.SCALE)
_MARKED = {"nonfinite": "not finite", "spike": "spike", "scale-fell": "scale fell", "resume": "resume",
           "skip": "skipped", "rate-jump": "learning rate jumped"}  # fmt: skip
_MOST_MARKS = 60


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a place of the x axis."""

    x: float
    what: str
    text: str


@dataclass(slots=True)
class Panel:
    """One curve: x, mean, low and high of each bucket (NaN where a bucket has no finite value), and bad places."""

    name: str
    x: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    bad: list[float] = field(default_factory=list)

    @property
    def logarithmic(self) -> bool:
        """A log axis where every value is positive and they differ by more than a little."""
        known = [value for value in self.low if math.isfinite(value)]
        top = max((value for value in self.high if math.isfinite(value)), default=1.0)
        return bool(known) and min(known) > 0 and top / min(known) > 4

    def bounds(self) -> tuple[float, float]:
        """The lowest and highest finite value, never the same."""
        low = min((value for value in self.low if math.isfinite(value)), default=0.0)
        high = max((value for value in self.high if math.isfinite(value)), default=1.0)
        if low < high:
            return low, high
        if not self.logarithmic:
            return (low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1))
        return (low / 2, high * 2)


def by_steps(log: Log) -> bool:
    """The x axis shows steps where they only go forward; else the order of the records."""
    return log.counted and not log.restarts and not log.resumes


def panels(log: Log, also: Sequence[str] = (), most: int = 8) -> list[Panel]:
    """The curves worth seeing, most important first."""
    series = [s for role in _ORDER for s in sorted(log.of_role(role), key=lambda s: (-s.count, s.name))]
    series = [log.series[name] for name in also if name in log.series] + [
        s for s in series if s.name not in also
    ]
    # A curve needs a second point; a constant loss scale or rate says nothing.
    shown = [
        s for s in series if s.count > 1 and (s.role not in (Role.SCALE,) or s.minimum < s.maximum or s.bad)
    ]
    return [_panel(log, s) for s in shown[:most]]


def _panel(log: Log, series: Series) -> Panel:
    steps = by_steps(log)
    panel = Panel(series.name)
    for bucket in series.buckets:
        x = bucket.step if steps else bucket.order
        panel.x.append(x)
        known = bucket.finite > 0
        panel.mean.append(bucket.mean if known else math.nan)
        panel.low.append(bucket.low if known else math.nan)
        panel.high.append(bucket.high if known else math.nan)
        if bucket.bad:
            panel.bad.append(x)
    return panel


def marks(log: Log) -> list[Mark]:
    """What happened, thinned where it happened often; the first failure is always among them."""
    steps = by_steps(log)
    found = [h for h in log.happenings if h.what in _MARKED]
    first = [h for h in found if h.what == "nonfinite"][:1]
    thinned = found[:: max(1, len(found) // _MOST_MARKS)]
    made = []
    for happening in [*first, *(h for h in thinned if h not in first)]:
        point = happening.point
        value = "" if happening.what in ("skip", "resume") else f" {point.value:.4g}"
        text = (
            f"{_MARKED[happening.what]}: {happening.series}{value} at step {point.step:g} (line {point.line})"
        )
        made.append(Mark(point.step if steps else point.order, happening.what, text))
    return made
