"""What the log rules share: how a series moved before a point, and where to point at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from stayfinite.findings.subjects.log import Log, Point, Role, Series, at

_GROUPS = 16
_LOOK_BACK = 64
_FLOOR = 1.5
_SHARE_OF_ONE = 0.75


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rise that is spread over several values: from where, to where, by how much."""

    first: Point
    last: Point
    low: float
    high: float


def ramp(points: Sequence[Point], least: float) -> Ramp | None:
    """A steady rise by at least this factor up to the last point; one jump is no ramp, noise is none either."""
    known = list(points)[-_LOOK_BACK:]
    if len(known) < 4 or min(point.value for point in known) < 0:
        return None
    size = max(1, len(known) // _GROUPS)
    groups = [known[begin : begin + size] for begin in range(len(known) % size, len(known), size)]
    levels = [max(median(point.value for point in group), 1e-30) for group in groups]
    # The rise begins where the values leave their floor for good, not at the lowest of a noisy stretch.
    lowest = max(index for index, level in enumerate(levels) if level <= _FLOOR * min(levels))
    tail = levels[lowest:]
    if len(tail) < 3 or tail[-1] < least * tail[0]:
        return None
    rises = [b / a for a, b in pairwise(tail)]
    one_jump = max(rises) > (tail[-1] / tail[0]) ** _SHARE_OF_ONE
    if one_jump or sum(rise > 1.0 for rise in rises) < 0.75 * len(rises):
        return None
    return Ramp(groups[lowest][0], known[-1], tail[0], max(tail[-1], known[-1].value))


def rate_text(log: Log, around: dict[str, float]) -> str:
    """The learning rate at that moment, in words."""
    rates = {
        name: value
        for name, value in around.items()
        if name in log.series and log.series[name].role is Role.RATE
    }
    if not rates:  # nothing is known of that moment, unless it never changed
        still = [series for series in log.of_role(Role.RATE) if series.minimum == series.maximum]
        rates = {series.name: series.maximum for series in still}
    if not rates:
        return ""
    shown = sorted(set(rates.values()))
    return f"; learning rate {', '.join(f'{rate:.4g}' for rate in shown[:3])}"


def main_loss(log: Log) -> Series | None:
    """The loss the run is trained on; a component where there is only one of them."""
    main = log.main(Role.LOSS)
    if main is not None:
        return main
    parts = log.of_role(Role.COMPONENT)
    return parts[0] if len(parts) == 1 else None


_OTHER_GAMES = re.compile(
    r"(^|[/._\- ])(gan|disc(riminator)?|gen(erator)?|critic|actor|policy|value_loss"
    r"|(mean_|episode_?|ep_?)?rew(ard)?(_mean)?s?"
    r"|(episode_|ep_)?returns?|advers\w*|ppo|d_loss\w*|g_loss\w*|loss_?[dg]|q_loss|td_\w+|approx_kl)([/._\- ]|$)"
)


def plays_against_itself(log: Log) -> bool:
    """Adversarial and reinforcement training: losses there neither have to fall nor to stay low."""
    return any(_OTHER_GAMES.search(name.lower()) for name in log.series)


def place(log: Log, point: Point) -> dict[str, Any]:
    """Where a finding points."""
    return {"file": log.path, "line": point.line}


def when(log: Log, point: Point) -> str:
    return at(point, log.counted)
