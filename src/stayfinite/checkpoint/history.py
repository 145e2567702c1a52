"""Over many checkpoints of one run: the newest healthy one, where the trouble started, and what went first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stayfinite.checkpoint.verify import CheckpointVerdict
from stayfinite.findings.subjects.checkpoint import Kind, Tensor
from stayfinite.readers.checkpoint import Unreadable, read_structure
from stayfinite.readers.checkpoint.contents import TensorRef
from stayfinite.readers.checkpoint.measure import norm

_SHOWN_TENSORS = 6
_SHOWN_CHECKPOINTS = 8
_GROWTH = 2.0


@dataclass(slots=True)
class Trail:
    """How the norm of one tensor moved over the last checkpoints (None: not in it or not readable)."""

    tensor: str
    norms: list[float | None]


@dataclass(slots=True)
class History:
    """Checkpoints in the order of their steps, and what they tell together."""

    ordered: list[CheckpointVerdict]
    last_good: CheckpointVerdict | None = None
    first_bad: CheckpointVerdict | None = None
    """The first bad one after the last good; None where nothing went bad since."""
    first_tensors: list[Tensor] = field(default_factory=list)
    """Bad tensors of `first_bad`; those that had been growing come first."""
    shown: list[CheckpointVerdict] = field(default_factory=list)
    trails: list[Trail] = field(default_factory=list)


def history(verdicts: Sequence[CheckpointVerdict]) -> History:
    """Order, find the last good one, and follow the tensors that went bad."""
    ordered = sorted(verdicts, key=_when)
    good = [place for place, verdict in enumerate(ordered) if verdict.healthy]
    last = good[-1] if good else None
    result = History(ordered, ordered[last] if last is not None else None)
    after = ordered[(last + 1 if last is not None else 0) :]
    result.first_bad = after[0] if after else None
    if result.first_bad is None:
        return result
    place = ordered.index(result.first_bad)
    before = ordered[max(0, place - _SHOWN_CHECKPOINTS + 2) : place]
    growth = _growth(before)
    bad = result.first_bad.bad_tensors
    growing = [t for t in bad if growth.get(t.name, 1.0) >= _GROWTH]
    growing.sort(key=lambda t: -growth[t.name])
    result.first_tensors = growing + [t for t in bad if t not in growing]
    result.shown = [*before, result.first_bad]
    names = [tensor.name for tensor in result.first_tensors if tensor.kind is not Kind.OPTIMIZER]
    names += [name for name, _ in sorted(growth.items(), key=lambda item: -item[1]) if name not in names]
    result.trails = _trails(result.shown, names[:_SHOWN_TENSORS])
    return result


def _when(verdict: CheckpointVerdict) -> tuple[float, float]:
    """By step; by time of writing where the step is unknown or the same."""
    step = verdict.checkpoint.step
    times = [Path(file).stat().st_mtime for file in verdict.checkpoint.files if Path(file).exists()]
    written = max(times, default=math.inf)
    return (float(step) if step is not None else math.inf, written)


def _growth(verdicts: Sequence[CheckpointVerdict]) -> dict[str, float]:
    """How many times larger the largest value of each weight became over these checkpoints."""
    readable = [verdict for verdict in verdicts if verdict.checkpoint.tensors]
    if len(readable) < 2:
        return {}
    start = {t.name: t.statistics.largest for t in readable[0].checkpoint.tensors if t.statistics}
    end = [
        t for t in readable[-1].checkpoint.tensors if t.kind in (Kind.WEIGHTS, Kind.BUFFERS) and t.floating
    ]
    return {
        tensor.name: tensor.statistics.largest / start[tensor.name]
        for tensor in end
        if tensor.statistics and start.get(tensor.name, 0.0) > 0
    }


def _trails(verdicts: Sequence[CheckpointVerdict], names: Sequence[str]) -> list[Trail]:
    trails = [Trail(name, []) for name in names]
    for verdict in verdicts:
        refs: dict[str, TensorRef] = {}
        if verdict.location is not None:
            try:
                state = read_structure(verdict.location)
            except (Unreadable, OSError):
                state = None  # its verdict already says why
            if state is not None:
                pairs = zip(state.checkpoint.tensors, state.leaves, strict=True)
                refs = {
                    t.name: leaf
                    for t, leaf in pairs
                    if isinstance(leaf, TensorRef) and leaf.trouble() is None
                }
        for trail in trails:
            trail.norms.append(norm(refs[trail.tensor]) if trail.tensor in refs else None)
    return trails
