"""Statistics of tensors at disk speed: one pass of minimum and maximum, a second only where it is bad.

NaN and Inf pass through both minimum and maximum, so the first pass cannot miss one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from stayfinite.findings.subjects.checkpoint import Statistics
from stayfinite.readers.checkpoint.contents import TensorRef
from stayfinite.readers.checkpoint.half_range import available, half_range
from stayfinite.readers.checkpoint.pieces import Piece, only_bytes, pieces, readable, repeats
from stayfinite.readers.checkpoint.source import Unreadable
from stayfinite.readers.checkpoint.tiny import TinyTensors, is_tiny
from stayfinite.readers.threads import on_threads

if TYPE_CHECKING:
    import torch

_UNIT = 64 << 20
_MOST_TOGETHER = 512
Measured = Statistics | str | None
"""Statistics; or why they could not be read; or None where the values mean nothing."""


def measure(
    refs: Sequence[TensorRef],
    *,
    jobs: int = 1,
    count_signs: Callable[[int, Statistics], bool] = lambda index, stats: False,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> list[Measured]:
    """Statistics for each tensor. `count_signs` says for which to count zeros and negative values too."""
    results: list[Measured] = [None] * len(refs)
    units: list[tuple[int, int, int | None]] = []
    for index, ref in enumerate(refs):
        trouble = ref.trouble()
        if trouble is not None:
            results[index] = trouble
        elif readable(ref.dtype):
            results[index] = Statistics()
            units += [(index, begin, end) for begin, end in _cuts(ref)]
    stop = threading.Event()
    ranges: dict[int, list[tuple[float, float]]] = {}

    def first_pass(unit: tuple[int, int, int | None]) -> None:
        index, begin, end = unit
        try:
            found = [_range(piece, stop, advance) for piece in pieces(refs[index], begin, end)]
        except (Unreadable, OSError) as trouble:
            results[index] = str(trouble)
            return
        ranges.setdefault(index, []).extend(found)

    def first_passes(batch: Sequence[tuple[int, int, int | None]]) -> None:
        tiny, small = TinyTensors(), 0
        for unit in batch:
            if stop.is_set():
                return
            ref = refs[unit[0]]
            if ref.numel and is_tiny(ref):
                small += ref.numel * ref.item_size
                try:
                    ranges[unit[0]] = [tiny.bounds(ref)]
                except (Unreadable, OSError) as trouble:
                    results[unit[0]] = str(trouble)
                continue
            first_pass(unit)
        advance(small)

    on_threads(first_passes, _batches(units, refs), jobs, stop)
    again: list[int] = []
    for index, stats in enumerate(results):
        if isinstance(stats, Statistics) and index in ranges:
            _merge(stats, ranges[index])
            not_finite = stats.minimum is None or not math.isfinite(stats.minimum + (stats.maximum or 0.0))
            if not_finite or count_signs(index, stats):
                again.append(index)

    def second_pass(index: int) -> None:
        try:
            results[index] = count(refs[index], stop)
        except (Unreadable, OSError) as trouble:
            results[index] = str(trouble)

    on_threads(second_pass, again, jobs, stop)
    return results


def _cuts(ref: TensorRef) -> Iterable[tuple[int, int | None]]:
    """A large contiguous tensor in parts that threads can share."""
    if not ref.contiguous:
        return [(0, None)]
    step = _UNIT // ref.item_size
    return [(begin, min(begin + step, ref.numel)) for begin in range(0, ref.numel, step)]


def _batches(
    units: Sequence[tuple[int, int, int | None]], refs: Sequence[TensorRef]
) -> list[list[tuple[int, int, int | None]]]:
    """Small tensors together: a task of the pool costs more than looking at a hundred of them."""
    made: list[list[tuple[int, int, int | None]]] = [[]]
    room = _UNIT
    for unit in units:
        index, begin, end = unit
        ref = refs[index]
        size = ((end if end is not None else ref.numel) - begin) * ref.item_size
        if (size > room or len(made[-1]) >= _MOST_TOGETHER) and made[-1]:
            made.append([])
            room = _UNIT
        made[-1].append(unit)
        room -= max(size, 1)
    return made


def _range(piece: Piece, stop: threading.Event, advance: Callable[[int], None]) -> tuple[float, float]:
    if stop.is_set():
        raise Unreadable("the scan was stopped")
    found = bounds(piece.values)
    advance(piece.values.nbytes)
    return found


def bounds(values: torch.Tensor) -> tuple[float, float]:
    """The lowest and highest value; both NaN, or one infinite, where not all of them are finite."""
    import torch

    if values.dtype in (torch.bfloat16, torch.float16) and values.is_contiguous() and available():
        return half_range(values)
    low, high = torch.aminmax(comparable(values))
    return low.item(), high.item()


def comparable(values: torch.Tensor) -> torch.Tensor:
    """The values as a type that torch can order: complex as pairs, eight-bit floats as float32."""
    import torch

    if values.dtype == torch.complex32:
        return torch.view_as_real(values.to(torch.complex64))
    if values.is_complex():
        return torch.view_as_real(values)
    return values.to(torch.float32) if values.is_floating_point() and values.element_size() == 1 else values


def _merge(stats: Statistics, ranges: list[tuple[float, float]]) -> None:
    lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
    bad = any(math.isnan(low) for low in lows)
    stats.minimum = math.nan if bad else min(lows)
    stats.maximum = math.nan if bad else max(highs)


def count(ref: TensorRef, stop: threading.Event | None = None) -> Statistics:
    """Exact counts, the range of the finite values, and the first bad index."""
    total = Statistics(zeros=0, negative=0)
    first: int | None = None
    for piece in pieces(ref):
        if stop is not None and stop.is_set():
            raise Unreadable("the scan was stopped")
        add_counts(total, piece.values)
        if total.bad and (first is None or not ref.contiguous):
            here = bad_mask(piece.values)
            if here.any():
                place = piece.logical(here.nonzero())
                first = place if first is None else min(first, place)
    if only_bytes(ref):  # positions in the file are not positions in the tensor
        return total
    times = repeats(ref)
    total.nan, total.inf = total.nan * times, total.inf * times
    total.positive_inf *= times
    total.zeros, total.negative = (total.zeros or 0) * times, (total.negative or 0) * times
    total.first_bad = None if first is None else unravel(first, ref.shape)
    return total


def norm(ref: TensorRef) -> float:
    """The Euclidean norm, added up in double precision."""
    import torch

    total = 0.0
    for piece in pieces(ref):
        total += float(comparable(piece.values).to(torch.float64).square().sum())
    return math.sqrt(total) if total >= 0 else math.nan


def bad_mask(values: torch.Tensor) -> torch.Tensor:
    """True where a value is NaN or infinite."""
    import torch

    plain = comparable(values)
    bad = ~torch.isfinite(plain)
    return bad.any(dim=-1) if values.is_complex() else bad


def add_counts(total: Statistics, values: torch.Tensor) -> None:
    """Add one piece to the counts."""
    import torch

    plain = comparable(values)
    if not plain.is_floating_point():
        low, high = (bound.item() for bound in torch.aminmax(plain))
        _widen(total, low, high)
    else:
        nan, inf = torch.isnan(plain), torch.isinf(plain)
        positive = plain == math.inf
        if values.is_complex():
            nan = nan.any(dim=-1)
            inf, positive = inf.any(dim=-1) & ~nan, positive.any(dim=-1) & ~nan
        total.nan += int(nan.sum())
        total.inf += int(inf.sum())
        total.positive_inf += int(positive.sum())
        finite = plain[torch.isfinite(plain)]
        if finite.numel():
            low, high = (bound.item() for bound in torch.aminmax(finite))
            _widen(total, low, high)
    total.zeros = (total.zeros or 0) + int((plain == 0).sum())
    total.negative = (total.negative or 0) + int((plain < 0).sum())


def _widen(total: Statistics, low: float, high: float) -> None:
    total.minimum = low if total.minimum is None else min(total.minimum, low)
    total.maximum = high if total.maximum is None else max(total.maximum, high)


def unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A flat position as an index."""
    index: list[int] = []
    for size in reversed(shape):
        index.append(flat % size if size else 0)
        flat //= max(size, 1)
    return tuple(reversed(index))
