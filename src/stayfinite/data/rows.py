"""RowState: blocks of rows in, what they hold sample by sample out. `update` takes a block, `merge` joins two states.

Made for the speed of the disk: one pass for the range (NaN and Inf cannot hide from it), a sum of bits of each row for
duplicates; everything else looks closer only where these, or a few probed columns, give a reason.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stayfinite.data.repeated import ONE_WORD, fingerprints, repeated
from stayfinite.findings.subjects.data_set import Samples
from stayfinite.readers.checkpoint.measure import bounds, comparable

if TYPE_CHECKING:
    import torch

_PEAKS = 17
_NARROW, _FEW = 4, 16
_SAMPLED, _ROWS_OF_A_BLOCK, _ROWS_OF_A_LATER_ONE = 64, 64, 16
_FIRST_ROWS = 16
_FAR = 1000.0
_NORM_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Watch:
    """What to look for beside what is always looked for."""

    low: float | None = None
    high: float | None = None
    norm: float | None = None
    ignore: float | None = None
    """A label that does not count."""
    duplicates: bool = True
    part: int = 0
    """Duplicates are first looked for by so many words of each row; 0: by whole rows."""
    samples: bool = True
    """Rows are samples with several values; False for labels and lengths."""


@dataclass(slots=True)
class RowState:
    rows: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    nan: int = 0
    inf: int = 0
    first_bad: tuple[int, int] | None = None
    bad: Samples = field(default_factory=Samples)
    constant: Samples = field(default_factory=Samples)
    zero: Samples = field(default_factory=Samples)
    ignored: Samples = field(default_factory=Samples)
    outside: Samples = field(default_factory=Samples)
    outside_values: list[float] = field(default_factory=list)
    far: Samples = field(default_factory=Samples)
    far_value: float = 0.0
    block_peaks: list[float] = field(default_factory=list)
    """In order."""
    still: torch.Tensor | None = None
    """Columns that have held one value so far."""
    first_row: torch.Tensor | None = None
    fingerprints: list[torch.Tensor] = field(default_factory=list)
    looked_at: int = 0
    total: float = 0.0
    squares: float = 0.0
    whole: bool = True
    blocks: int = 0


def update(state: RowState, block: torch.Tensor, first: int, watch: Watch) -> None:
    """Add rows x values, of which the first row is sample number `first`."""
    state.rows += block.shape[0]
    state.blocks += 1
    low, high = bounds(block)
    if watch.part == ONE_WORD and _nothing_to_look_at(state, low, high, watch):
        state.minimum, state.maximum = min(state.minimum, low), max(state.maximum, high)
        _note_peak(state, max(-low, high))
        return
    values = comparable(block)
    if values.dim() > block.dim():  # complex values as pairs
        values = values.flatten(1)
    if not math.isfinite(low + high) and values.is_floating_point():
        low, high = _take_bad(state, values, first)
    state.minimum, state.maximum = min(state.minimum, low), max(state.maximum, high)
    _find_outside(state, values, first, low, high, watch)
    if not watch.samples:
        return
    _find_far(state, values, first, low, high)
    if watch.part != ONE_WORD:  # else MiddleWords does it
        find_constant(state, values, first, watch)
        if watch.duplicates:
            state.fingerprints.append(fingerprints(block, watch.part))
    _follow_columns(state, values)
    if _is_sampled(state):
        _sample(state, values, first)


def _nothing_to_look_at(state: RowState, low: float, high: float, watch: Watch) -> bool:
    """The range of a block says all there is to say of it, for what is not told by MiddleWords. Most blocks are so."""
    if state.still is None or state.still.numel() or watch.norm is not None or _is_sampled(state):
        return False
    if (watch.low is not None and not low >= watch.low) or (
        watch.high is not None and not high <= watch.high
    ):
        return False
    return bool(state.block_peaks) and max(-low, high) <= _FAR * _usual_peak(state)


def _is_sampled(state: RowState) -> bool:
    return state.blocks % _SAMPLED == 1


def _take_bad(state: RowState, values: torch.Tensor, first: int) -> tuple[float, float]:
    """Count what is not finite; returns the range of what is."""
    import torch

    bad = ~torch.isfinite(values)
    rows = bad.any(dim=1)
    _add(state.bad, rows, first)
    state.nan += int(torch.isnan(values).sum())
    state.inf += int(torch.isinf(values).sum())
    if state.first_bad is None:
        row, column = bad.nonzero()[0].tolist()
        state.first_bad = (first + row, column)
    finite = values[~bad]
    if not finite.numel():
        return math.inf, -math.inf
    low, high = torch.aminmax(finite)
    return low.item(), high.item()


def _find_outside(
    state: RowState, values: torch.Tensor, first: int, low: float, high: float, watch: Watch
) -> None:
    import torch

    if watch.norm is not None and values.is_floating_point():
        norms = torch.linalg.vector_norm(values.double(), dim=1)
        wrong = (norms - watch.norm).abs() > _NORM_TOLERANCE * watch.norm
        _note_outside(state, wrong, norms, first)
    if (watch.low is None or low >= watch.low) and (watch.high is None or high <= watch.high):
        return
    wrong = torch.zeros_like(values, dtype=torch.bool)
    if watch.low is not None:
        wrong |= values < watch.low
    if watch.high is not None:
        wrong |= values > watch.high
    if watch.ignore is not None:
        wrong &= values != watch.ignore
    rows = wrong.any(dim=1)
    if rows.any():
        state.outside_values = (state.outside_values + values[wrong][:5].tolist())[:5]
        _add(state.outside, rows, first)


def _note_outside(state: RowState, rows: torch.Tensor, shown: torch.Tensor, first: int) -> None:
    if rows.any():
        state.outside_values = (state.outside_values + shown[rows][:5].tolist())[:5]
        _add(state.outside, rows, first)


def _find_far(state: RowState, values: torch.Tensor, first: int, low: float, high: float) -> None:
    """Rows a thousand times larger than the usual block's largest value."""
    import torch

    if not math.isfinite(low + high) or not values.is_floating_point():
        return
    peak = max(abs(low), abs(high))
    usual = _usual_peak(state)
    if not state.block_peaks and values.shape[0] > 8:
        some = _some(values, first)
        peaks = torch.amax(some.float().abs(), dim=1)
        usual = float(peaks[torch.isfinite(peaks)].median()) if torch.isfinite(peaks).any() else 0.0
    if usual > 0 and peak > _FAR * usual:
        rows = torch.amax(values.abs(), dim=1) > _FAR * usual
        _add(state.far, rows, first)
        state.far_value = max(state.far_value, peak)
        peak = usual
    _note_peak(state, peak)


def _usual_peak(state: RowState) -> float:
    return state.block_peaks[len(state.block_peaks) // 2] if state.block_peaks else 0.0


def _note_peak(state: RowState, peak: float) -> None:
    if len(state.block_peaks) < _PEAKS:
        insort(state.block_peaks, peak)


def find_constant(state: RowState, values: torch.Tensor, first: int, watch: Watch) -> None:
    """Rows of one value: only rows whose probed columns agree are looked at whole."""
    width = values.shape[1]
    if width < 2:
        return
    middle = (width - 1) // 2
    rows = (values[:, middle] == values[:, middle + 1]).nonzero().flatten()
    if not rows.numel():
        return
    if width > _NARROW and rows.numel() > _FEW:
        for column in (middle, width // 3, width - 1):
            rows = rows[values[rows, 0] == values[rows, column]]
    whole = values[rows]
    same = rows[(whole == whole[:, :1]).all(dim=1)]
    if not same.numel():
        return
    heads = values[same][:, 0]
    if watch.ignore is not None:
        _add_rows(state.ignored, same[heads == watch.ignore], first)
    _add_rows(state.zero, same[heads == 0], first)
    _add_rows(state.constant, same[heads != 0], first)


def _follow_columns(state: RowState, values: torch.Tensor) -> None:
    """Columns that hold one value: after the first rows only those that still might."""
    if state.first_row is None:
        state.first_row = values[0].clone()
        state.still = (values[:_FIRST_ROWS] == values[:1]).all(dim=0).nonzero().flatten()
    if state.still is not None and state.still.numel():
        part = values[:, state.still]
        state.still = state.still[(part == state.first_row[state.still]).all(dim=0)]


def _some(values: torch.Tensor, first: int) -> torch.Tensor:
    """Rows of a block, evenly spread: more of the array's first one, which may be the only one."""
    return values[:: 1 + values.shape[0] // (_ROWS_OF_A_BLOCK if first == 0 else _ROWS_OF_A_LATER_ONE)]


def _sample(state: RowState, values: torch.Tensor, first: int) -> None:
    """Mean, deviation and whole numbers of some rows of every sixty-fourth block."""
    import torch

    known = _some(values, first).double()
    known = known[torch.isfinite(known)] if state.bad else known
    state.looked_at += known.numel()
    state.total += float(known.sum())
    state.squares += float(known.square().sum())
    state.whole = state.whole and bool((known == known.round()).all())


def _add(samples: Samples, rows: torch.Tensor, first: int) -> None:
    _add_rows(samples, rows.nonzero().flatten(), first)


def _add_rows(samples: Samples, rows: torch.Tensor, first: int) -> None:
    samples.count += rows.numel()
    room = Samples.MOST - len(samples.first)
    if room > 0:
        samples.first += [first + row for row in rows[:room].tolist()]


def merge(states: list[RowState]) -> RowState:
    """Parts of one array, in order."""
    import torch

    made = states[0]
    for other in states[1:]:
        made.rows += other.rows
        made.blocks += other.blocks
        made.minimum, made.maximum = min(made.minimum, other.minimum), max(made.maximum, other.maximum)
        made.nan, made.inf = made.nan + other.nan, made.inf + other.inf
        made.first_bad = made.first_bad or other.first_bad
        for name in ("bad", "constant", "zero", "ignored", "outside", "far"):
            mine, theirs = getattr(made, name), getattr(other, name)
            mine.count += theirs.count
            mine.first = (mine.first + theirs.first)[: Samples.MOST]
        made.outside_values = (made.outside_values + other.outside_values)[:5]
        made.far_value = max(made.far_value, other.far_value)
        made.block_peaks = sorted(made.block_peaks + other.block_peaks)
        made.fingerprints += other.fingerprints
        made.looked_at += other.looked_at
        made.total, made.squares = made.total + other.total, made.squares + other.squares
        made.whole = made.whole and other.whole
        if (
            made.still is not None
            and other.still is not None
            and made.first_row is not None
            and other.first_row is not None
        ):
            both = made.still[torch.isin(made.still, other.still)]
            made.still = both[made.first_row[both] == other.first_row[both]]
    return made


def duplicates(state: RowState) -> list[tuple[int, int]]:
    """Pairs (row, earlier row) whose fingerprints are equal; the caller compares the rows themselves."""
    import torch

    return repeated(torch.cat(state.fingerprints)) if state.fingerprints else []
