"""A tensor's values as small bars: negative to positive, each side by decades. The numbers come from incident.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stayfinite.report.record.loose import items, number

_LEAST = 0.06  # a bar with one value in it is still seen


@dataclass(frozen=True, slots=True)
class Bar:
    """Position and height as shares of the picture; what it counts, in words."""

    x: float
    width: float
    height: float
    kind: str
    text: str


def bars(histogram: Any, zeros: int) -> list[Bar]:
    """Negative values from large to small, zeros, positive values from small to large."""
    low, high = number(histogram, "low"), number(histogram, "high")
    negative, positive = _counts(histogram, "negative"), _counts(histogram, "positive")
    if low is None or high is None or not (negative or positive) or not -400 <= low <= high <= 400:
        return []
    cells = [
        *(("negative", n, _range(low, high, i, len(negative), "−")) for i, n in reversed(list(enumerate(negative)))),
        ("zero", zeros, "zero"),
        *(("positive", n, _range(low, high, i, len(positive), "")) for i, n in enumerate(positive)),
    ]  # fmt: skip
    most = max(n for _, n, _ in cells)
    if most <= 0:
        return []
    width = 1 / len(cells)
    return [
        Bar(i * width, width, max(n / most, _LEAST) if n else 0.0, kind, f"{n:,} values {words}")
        for i, (kind, n, words) in enumerate(cells)
    ]


@dataclass(frozen=True, slots=True)
class Tick:
    """A number under the bars."""

    x: float
    label: str
    anchor: str


def ticks(histogram: Any, drawn: list[Bar]) -> list[Tick]:
    """The ends and zero."""
    high = number(histogram, "high")
    if high is None or not drawn:
        return []
    zero = next(bar for bar in drawn if bar.kind == "zero")
    made = [Tick(zero.x + zero.width / 2, "0", "middle")]
    if drawn[0].kind == "negative":
        made.append(Tick(0.0, f"−{_power(high)}", "start"))
    if drawn[-1].kind == "positive":
        made.append(Tick(1.0, _power(high), "end"))
    return made


def _power(exponent: float) -> str:
    return f"{10**exponent:g}" if -3 <= exponent <= 4 else f"1e{exponent:.0f}"


def _counts(histogram: Any, side: str) -> list[int]:
    found = [
        n for n in items(histogram, side)[:64] if isinstance(n, int) and not isinstance(n, bool) and n >= 0
    ]
    return found if any(found) else []


def _range(low: float, high: float, index: int, of: int, sign: str) -> str:
    ends = [low + (high - low) * (index + i) / of for i in (0, 1)]
    return "from {0}{1} to {0}{2}".format(
        sign, *(f"{10**end:.3g}" if -300 < end < 300 else f"1e{end:.0f}" for end in ends)
    )
